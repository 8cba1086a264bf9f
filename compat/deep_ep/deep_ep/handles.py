"""What a dispatch hands to its combine. Callers pass it on; DeepEP's tests look into it.

They read as the tuples of DeepEP. What nobody asks for is not computed, and what has no meaning
here is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import tokenyard
from tokenyard.compat.served_batch import ServedBatch
from tokenyard.errors import invalid


def check_handle(handle: object, kind: type, call: str) -> None:
    """That it is what `call` gave; its parts in a tuple, or another call's handle, are not."""
    if not isinstance(handle, kind):
        raise invalid("handle", f"what {call} gave", type(handle).__name__)


class DispatchHandle(Sequence[Any]):
    """Of `Buffer.dispatch`: the prefix matrix of ranks, two Nones, the source tokens,
    is_token_in_rank, and None."""

    def __init__(
        self,
        exchange: tokenyard.ExpertParallel,
        received: tokenyard.Received[torch.Tensor],
        is_token_in_rank: torch.Tensor | None,
    ) -> None:
        self.exchange = exchange
        self.route = received.route
        self._rows_from = received.rows_from_on_device
        self._source_token = received.source_token
        self._is_token_in_rank = is_token_in_rank

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: Any) -> Any:
        parts: list[Callable[[], Any]] = [
            self._rank_prefix_matrix,
            lambda: None,
            lambda: None,
            lambda: self._source_token,
            lambda: self._is_token_in_rank,
            lambda: None,
        ]
        if isinstance(index, slice):
            return tuple(part() for part in parts[index])
        return parts[index]()

    def _rank_prefix_matrix(self) -> torch.Tensor:
        """[ranks, ranks] int32: in this rank's column how many rows came from ranks 0 .. row. What
        went between others it does not know: -1."""
        ranks, rank = self.exchange.world.size, self.exchange.world.rank
        matrix = self._rows_from.new_full((ranks, ranks), -1)
        matrix[:, rank] = self._rows_from.cumsum(0)
        return matrix


class LowLatencyHandle(ServedBatch):
    """Of `Buffer.low_latency_dispatch`."""

    def __init__(
        self,
        exchange: tokenyard.LowLatency,
        received: tokenyard.LowLatencyReceived[torch.Tensor],
        topk_idx: torch.Tensor,
        left_out: frozenset[int],
    ) -> None:
        super().__init__(exchange, received, topk_idx)
        self.left_out = left_out
        """Ranks that were masked by hand when it was dispatched."""
