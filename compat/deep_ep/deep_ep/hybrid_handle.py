"""The handle of HybridEPBuffer's dispatches. It reads as the tuple that HybridEP returns.

Elements are computed on access. Elements without a meaning here (HybridEP's second network, its
chunks and its kernel's configuration) are None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import tokenyard

from .hybrid_routes import table_of


class HybridHandle(Sequence[Any]):
    """The handle of one dispatch, for combine and for later dispatches on the same route.

    Reads, after `dispatch_with_permute`, as (sparse_to_dense_map, None, None,
    num_dispatched_tokens, local_expert_routing_map, None, dense_to_expert_map, tokens_per_expert,
    num_of_tokens_per_rank, None, overflow_flag); after `dispatch`, as its elements 0 to 4, 8 and 9.
    """

    def __init__(
        self,
        exchange: tokenyard.ExpertParallel,
        received: tokenyard.Received[torch.Tensor],
        ids: torch.Tensor,
    ) -> None:
        self.exchange, self.route = exchange, received.route
        self.rows: tokenyard.ExpertRows[torch.Tensor] | None = None
        """The rows by expert without the rows, of `dispatch_with_permute`."""
        self.ids = ids
        """[tokens, choices] int64: experts of this rank's tokens, -1 for none."""
        self.received_ids = received.topk_idx
        """[rows, choices] int32: experts of this rank, -1 for none."""
        self.alignment = 1
        self._overflow: torch.Tensor | None = None
        self._rows_from = received.rows_from_on_device
        self._rows_of_expert = received.tokens_per_expert_on_device

    def use(self, alignment: int, overflow: torch.Tensor | None) -> None:
        """Notes how rows are grouped, and whether some were dropped."""
        self.alignment, self._overflow = alignment, overflow

    def __len__(self) -> int:
        return 7 if self.rows is None else 11

    def __getitem__(self, index: Any) -> Any:
        parts: list[Callable[[], Any]] = [
            lambda: self.route.row_on,
            lambda: None,
            lambda: None,
            lambda: self._rows_from.sum(0, keepdim=True, dtype=torch.int32),
            lambda: self._table(torch.ones_like(self.received_ids)) > 0,
            lambda: None,
            self._row_of_expert,
            lambda: self._rows_of_expert,
            lambda: self.route.tokens,
            lambda: None,
            self._overflow_flag,
        ]
        if self.rows is None:
            parts = [*parts[:5], *parts[8:10]]
        if isinstance(index, slice):
            return tuple(part() for part in parts[index])
        return parts[index]()

    @property
    def local_experts(self) -> int:
        return self._rows_of_expert.size(0)

    def _table(self, values: torch.Tensor) -> torch.Tensor:
        return table_of(values, self.received_ids, self.local_experts)

    def _overflow_flag(self) -> torch.Tensor:
        """Returns [1] int32: 1 if rows were dropped."""
        return self._rows_from.new_zeros(1) if self._overflow is None else self._overflow

    def _row_of_expert(self) -> torch.Tensor:
        """Returns [rows, local experts] int32: the row by expert, -1 for none."""
        assert self.rows is not None
        return self._table(self.rows.row_of_choice + 1) - 1
