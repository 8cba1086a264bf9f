"""What a contender can do, whoever made it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from batches import Batch

Between = Callable[[], None]


def nothing() -> None:
    pass


@dataclass
class Rows:
    """What a rank received."""

    x: torch.Tensor
    """[rows, hidden]"""
    handle: Any
    """For combine, and for a dispatch over the same route."""
    scales: torch.Tensor | None = None
    """[rows, hidden / 128] float32, of FP8 rows."""


class Throughput(Protocol):
    """Many tokens a call."""

    name: str
    lacks: frozenset[str]
    """Cases that it has no call for."""

    def use(self, sms: int, batch: Batch) -> None:
        """From now on calls take that many multiprocessors. Collective."""

    def dispatch(self, batch: Batch, fp8: bool = False) -> Rows: ...

    def dispatch_again(self, batch: Batch, rows: Rows) -> torch.Tensor:
        """Other tokens over the same route: nothing is counted."""

    def dispatch_by_expert(self, batch: Batch, at_once: bool = False) -> Rows:
        """Grouped by expert, each group padded to a multiple of 128 rows. `at_once`: as they come,
        by those who can, on as many multiprocessors as that takes."""

    def experts_of(self, rows: Rows) -> list[tuple[int, int]]:
        """Of rows grouped by expert: the first and the end of each local expert's. May wait."""

    def output(self, rows: Rows) -> torch.Tensor:
        """Where results are best written to for combine: [rows, hidden] bfloat16."""

    def combine(self, y: torch.Tensor, rows: Rows) -> torch.Tensor: ...

    def combine_by_expert(self, y: torch.Tensor, rows: Rows) -> torch.Tensor: ...

    def wait(self) -> None:
        """Until what was enqueued is done."""

    def close(self) -> None: ...


class LowLatency(Protocol):
    """Few tokens a call, in buffers that stay. The host waits for nothing."""

    name: str
    hooks: bool
    """Whether a call may be had in two halves: it sends, and its hook receives."""
    weighted: bool
    """Whether combine weighs; if not, it only sums."""

    def dispatch(
        self, batch: Batch, hooks: bool, between: Between = nothing
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """Rows by expert [..., hidden] FP8, their scales, and what combine needs. `between` is
        called between the two halves, if there are two."""

    def combine(
        self, y: torch.Tensor, batch: Batch, handle: Any, hooks: bool, between: Between = nothing
    ) -> torch.Tensor: ...

    def wait(self) -> None:
        """Until what was enqueued is done."""

    def close(self) -> None: ...
