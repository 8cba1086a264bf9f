"""Tokenyard, as a contender."""

from __future__ import annotations

from typing import Any

import torch
from batches import Batch, Shape
from contender import Between, Rows, nothing

import tokenyard

ALIGNMENT = 128
AT_ONCE_SMS = 48
"""Multiprocessors for rows grouped while they arrive: each is stored once per expert, not twice."""


def local_sms(array: torch.Tensor) -> int:
    """Returns all multiprocessors, for the part of a call that needs no other rank."""
    if not array.is_cuda:
        return 0
    return torch.cuda.get_device_properties(array.device).multi_processor_count


class Throughput:
    name = "tokenyard"
    lacks: frozenset[str] = frozenset()

    def __init__(self, world: tokenyard.World, shape: Shape, sms_max: int) -> None:
        self._sms = 0
        self._sms_max = sms_max
        self._exchange = tokenyard.ExpertParallel(
            world,
            experts=shape.experts,
            hidden=shape.hidden,
            topk=shape.topk,
            tokens_max=shape.tokens,
            sms=sms_max,
            sms_max=sms_max,
        )

    def use(self, sms: int, batch: Batch) -> None:
        self._sms = sms

    def dispatch(self, batch: Batch, fp8: bool = False) -> Rows:
        received = self._exchange.dispatch(
            batch.x_fp8 if fp8 else batch.x,
            batch.topk_idx,
            batch.topk_weights,
            scales=batch.scales if fp8 else None,
            sms=self._sms,
        )
        return Rows(received.x, received, received.scales)

    def dispatch_again(self, batch: Batch, rows: Rows) -> torch.Tensor:
        return self._exchange.dispatch(batch.x, route=rows.handle.route, sms=self._sms).x

    def dispatch_by_expert(self, batch: Batch, at_once: bool = False) -> Rows:
        if at_once:
            received, grouped = self._exchange.dispatch_by_expert(
                batch.x,
                batch.topk_idx,
                batch.topk_weights,
                alignment=ALIGNMENT,
                clear_padding=False,
                sms=min(AT_ONCE_SMS, self._sms_max),
            )
            return Rows(grouped.x, (received, grouped))
        received = self.dispatch(batch).handle
        grouped = self._exchange.group_by_expert(
            received, alignment=ALIGNMENT, clear_padding=False, sms=local_sms(batch.x)
        )
        return Rows(grouped.x, (received, grouped))

    def experts_of(self, rows: Rows) -> list[tuple[int, int]]:
        received, grouped = rows.handle
        counts = received.tokens_per_expert
        return [
            (first, first + count) for first, count in zip(grouped.first_rows, counts, strict=False)
        ]

    def output(self, rows: Rows) -> torch.Tensor:
        return self._exchange.combine_buffer(rows.handle.route)

    def combine(self, y: torch.Tensor, rows: Rows) -> torch.Tensor:
        return self._exchange.combine(y, rows.handle.route, sms=self._sms)

    def combine_by_expert(self, y: torch.Tensor, rows: Rows) -> torch.Tensor:
        received, grouped = rows.handle
        return self._exchange.combine(
            y, received.route, by_expert=grouped, sms=self._sms, local_sms=local_sms(y)
        )

    def wait(self) -> None:
        self._exchange.wait()

    def close(self) -> None:
        self._exchange.wait()
        self._exchange.close()


class LowLatency:
    name = "tokenyard"
    hooks = weighted = True

    def __init__(self, world: tokenyard.World, shape: Shape) -> None:
        self._exchange = tokenyard.LowLatency(
            world,
            experts=shape.experts,
            hidden=shape.hidden,
            topk=shape.topk,
            tokens_max=shape.tokens,
        )

    def dispatch(
        self, batch: Batch, hooks: bool, between: Between = nothing
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:
        got = self._exchange.dispatch(batch.x, batch.topk_idx, return_recv_hook=hooks)
        if got.hook is not None:
            between()
            got.hook()
        assert got.scales is not None
        return got.x, got.scales, got

    def combine(
        self, y: torch.Tensor, batch: Batch, handle: Any, hooks: bool, between: Between = nothing
    ) -> torch.Tensor:
        home = self._exchange.combine(y, handle, batch.topk_weights, return_recv_hook=hooks)
        if home.hook is not None:
            between()
            home.hook()
        return home.x

    def wait(self) -> None:
        self._exchange.wait()

    def close(self) -> None:
        self._exchange.wait()
        if self._exchange.failed_ranks():
            raise RuntimeError("a rank was masked while it was measured")
        self._exchange.close()
