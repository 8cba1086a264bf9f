"""DeepEP's tuning parameters: multiprocessors of a call, and room between hosts."""

from __future__ import annotations

from dataclasses import dataclass

from tokenyard.errors import invalid

TOKENS_HINTED = 8192
"""Tokens per rank and call for which `get_nvl_buffer_size_hint` sizes a buffer."""
CALLS_HELD = 3
"""Calls of the largest size that fit at once: one being received, one received before, and one
being combined."""
METADATA_BYTES = 512
"""Bytes for a row's ids, weights and source; enough for 32 experts per token."""
RANKS_PER_HOST = 8
"""Ranks per host of which DeepEP's hints and tuned tables tell."""
RDMA_CHUNKS = (6, 256)
"""Default rows per chunk, and per ring, between hosts: ours are chosen, unless others are given."""
RINGS_BYTES_MAX = 64 << 20
"""Bytes of all rings of a rank, at most."""


@dataclass(frozen=True)
class Config:
    """The configuration of a call.

    Rows within a host go directly to their final place, so there are no chunks to tune. Between
    hosts, DeepEP's channels, one per two multiprocessors, have a ring of
    `num_max_rdma_chunked_recv_tokens` rows each, and ours share one as large as all of these
    together, as far as 64 MiB per rank suffice. A put has at least
    `num_max_rdma_chunked_send_tokens` rows. The first call of a shape decides. The other fields
    are accepted and checked like DeepEP's, so that its tuned tables work.
    """

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = RDMA_CHUNKS[0]
    num_max_rdma_chunked_recv_tokens: int = RDMA_CHUNKS[1]

    def __post_init__(self) -> None:
        if self.num_sms < 0:
            raise invalid("num_sms", "0 or more", str(self.num_sms))
        for network in ("nvl", "rdma"):
            send = getattr(self, f"num_max_{network}_chunked_send_tokens")
            receive = getattr(self, f"num_max_{network}_chunked_recv_tokens")
            if not 0 < send < receive:
                raise invalid(
                    f"num_max_{network}_chunked_send_tokens",
                    f"more than 0 and less than the {receive} received",
                    str(send),
                )

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Returns the `num_nvl_bytes` for calls of up to 8192 tokens of `hidden_bytes` per rank."""
        return TOKENS_HINTED * num_ranks * (hidden_bytes + METADATA_BYTES)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Returns the bytes of rings between hosts of eight ranks: 0 for one such host."""
        hosts = -(-num_ranks // RANKS_PER_HOST)
        return 2 * (hosts - 1) * self._ring_rows(hosts, hidden_bytes) * _slot_bytes(hidden_bytes)

    def ring_rows(self, hosts: int, hidden_bytes: int) -> int:
        """Returns the rows of a ring between hosts; 0: chosen by the exchange."""
        return 0 if self._is_default(hosts) else self._ring_rows(hosts, hidden_bytes)

    def chunk_rows(self, hosts: int) -> int:
        """Returns the rows of a put between hosts, at least; 0: chosen by the exchange."""
        return 0 if self._is_default(hosts) else self.num_max_rdma_chunked_send_tokens

    def _is_default(self, hosts: int) -> bool:
        chunks = (self.num_max_rdma_chunked_send_tokens, self.num_max_rdma_chunked_recv_tokens)
        return hosts < 2 or chunks == RDMA_CHUNKS

    def _ring_rows(self, hosts: int, hidden_bytes: int) -> int:
        rows = max(self.num_sms // 2, 1) * self.num_max_rdma_chunked_recv_tokens
        # A ring and a stage, from which the network reads, per other host.
        most = RINGS_BYTES_MAX // (2 * max(hosts - 1, 1)) // _slot_bytes(hidden_bytes)
        return max(min(rows, most), 1)


def _slot_bytes(hidden_bytes: int) -> int:
    return hidden_bytes + METADATA_BYTES


def tokens_max(room: int, hidden_bytes: int, num_ranks: int) -> int:
    """Returns the largest number of tokens per rank and call that fit into `room` bytes."""
    return room // (CALLS_HELD * num_ranks * (hidden_bytes + METADATA_BYTES))
