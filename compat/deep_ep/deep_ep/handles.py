"""Handles of dispatches. Callers pass them to combine; DeepEP's tests read them.

They read as DeepEP's tuples. Elements are computed on access; elements without a meaning here are
None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import tokenyard
from tokenyard.compat.served_batch import ServedBatch
from tokenyard.errors import invalid


def check_handle(handle: object, kind: type, call: str) -> None:
    """Raises InvalidArgument unless `handle` is what `call` returned, not a tuple of its parts."""
    if not isinstance(handle, kind):
        raise invalid("handle", f"what {call} gave", type(handle).__name__)


class DispatchHandle(Sequence[Any]):
    """The handle of `Buffer.dispatch`.

    Reads as (rank_prefix_matrix, None, None, source tokens, is_token_in_rank, None); between hosts
    as DeepEP's ten parts, (is_token_in_rank, None, None, None, None, None, ends of the rows from
    each rank, source tokens, None, None).
    """

    def __init__(
        self,
        exchange: tokenyard.ExpertParallel,
        received: tokenyard.Received[torch.Tensor],
        is_token_in_rank: torch.Tensor | None,
        spans_hosts: bool = False,
    ) -> None:
        self.exchange = exchange
        self.route = received.route
        self._rows_from = received.rows_from_on_device
        self._source_token = received.source_token
        self._is_token_in_rank = is_token_in_rank
        nothing = [lambda: None]
        self._parts: list[Callable[[], Any]] = [
            self._rank_prefix_matrix,
            *(2 * nothing),
            lambda: self._source_token,
            lambda: self._is_token_in_rank,
            *nothing,
        ]
        if spans_hosts:
            self._parts = [
                lambda: self._is_token_in_rank,
                *(5 * nothing),
                self._rank_prefix_sum,
                lambda: self._source_token,
                *(2 * nothing),
            ]

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(part() for part in self._parts[index])
        return self._parts[index]()

    def _rank_prefix_sum(self) -> torch.Tensor:
        """Returns [ranks] int32: rows from ranks 0 to r."""
        return self._rows_from.cumsum(0, dtype=torch.int32)

    def _rank_prefix_matrix(self) -> torch.Tensor:
        """Returns [ranks, ranks] int32: rows from ranks 0 to r in this rank's column, -1 elsewhere.

        This rank does not know the counts of the other columns.
        """
        ranks, rank = self.exchange.world.size, self.exchange.world.rank
        matrix = self._rows_from.new_full((ranks, ranks), -1)
        matrix[:, rank] = self._rows_from.cumsum(0)
        return matrix


class LowLatencyHandle(ServedBatch):
    """The handle of `Buffer.low_latency_dispatch`."""

    def __init__(
        self,
        exchange: tokenyard.LowLatency,
        received: tokenyard.LowLatencyReceived[torch.Tensor],
        topk_idx: torch.Tensor,
        left_out: frozenset[int],
    ) -> None:
        super().__init__(exchange, received, topk_idx)
        self.left_out = left_out
        """Ranks that the caller had masked when it was dispatched."""
