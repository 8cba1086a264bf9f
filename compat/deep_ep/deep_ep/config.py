"""What callers of DeepEP tune, and what of it means something here."""

from __future__ import annotations

from dataclasses import dataclass

from tokenyard.errors import invalid

TOKENS_HINTED = 8192
"""Tokens a rank and call for which `get_nvl_buffer_size_hint` asks for room."""
CALLS_HELD = 3
"""Calls of the largest size that find room at once: one that is being received, what has been
received before, and what is being combined."""
METADATA_BYTES = 512
"""Room for the ids, weights and sources of a row: as much as 32 experts a token take."""


@dataclass(frozen=True)
class Config:
    """How a call may use the GPU.

    Only `num_sms` has a meaning: rows go straight to their final place, so there are no chunks to
    tune. The others are taken, and checked as DeepEP checks them, so that its tuned tables fit.
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
        """`num_nvl_bytes` for calls of up to 8192 tokens a rank, each of `hidden_bytes`."""
        return TOKENS_HINTED * num_ranks * (hidden_bytes + METADATA_BYTES)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """0: all ranks are within reach of loads and stores."""
        return 0


def tokens_max(room: int, hidden_bytes: int, num_ranks: int) -> int:
    """The most tokens a rank and call that so many bytes have room for."""
    return room // (CALLS_HELD * num_ranks * (hidden_bytes + METADATA_BYTES))
