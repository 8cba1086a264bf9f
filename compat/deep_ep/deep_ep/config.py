"""DeepEP's tuning parameters; only the number of multiprocessors has an effect here."""

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


@dataclass(frozen=True)
class Config:
    """The configuration of a call.

    Only `num_sms` has an effect: rows go directly to their final place, so there are no chunks to
    tune. The other fields are accepted and checked like DeepEP's, so that its tuned tables work.
    """

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

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
        """Returns 0: all ranks are within reach of loads and stores."""
        return 0


def tokens_max(room: int, hidden_bytes: int, num_ranks: int) -> int:
    """Returns the largest number of tokens per rank and call that fit into `room` bytes."""
    return room // (CALLS_HELD * num_ranks * (hidden_bytes + METADATA_BYTES))
