"""The interface of a contender: our library or a peer."""

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
    """Rows that a rank received."""

    x: torch.Tensor
    """[rows, hidden]"""
    handle: Any
    """Handle for combine, and for a dispatch on the same route."""
    scales: torch.Tensor | None = None
    """[rows, hidden / 128] float32 scales of FP8 rows."""


class Throughput(Protocol):
    """A contender with many tokens per call."""

    name: str
    lacks: frozenset[str]
    """Cases that it has no call for."""

    def use(self, sms: int, batch: Batch) -> None:
        """Sets the multiprocessors of later calls. Collective."""

    def dispatch(self, batch: Batch, fp8: bool = False) -> Rows: ...

    def dispatch_again(self, batch: Batch, rows: Rows) -> torch.Tensor:
        """Dispatches other tokens on the same route, without an exchange of counts."""

    def dispatch_by_expert(self, batch: Batch, at_once: bool = False) -> Rows:
        """Dispatches into groups by expert, each padded to a multiple of 128 rows.

        `at_once`: groups rows while they arrive, if it can, on as many multiprocessors as needed.
        """

    def experts_of(self, rows: Rows) -> list[tuple[int, int]]:
        """Returns begin and end of each local expert's rows, if grouped by expert. May wait."""

    def output(self, rows: Rows) -> torch.Tensor:
        """Returns the best memory for combine's input: [rows, hidden] bfloat16."""

    def combine(self, y: torch.Tensor, rows: Rows) -> torch.Tensor: ...

    def combine_by_expert(self, y: torch.Tensor, rows: Rows) -> torch.Tensor: ...

    def wait(self) -> None:
        """Waits for all enqueued work."""

    def close(self) -> None: ...


class LowLatency(Protocol):
    """A contender with few tokens per call and fixed buffers; the host does not wait."""

    name: str
    hooks: bool
    """Whether a call can be split into a sending half and a hook that receives."""
    weighted: bool
    """Whether combine applies weights; if not, it only sums."""

    def dispatch(
        self, batch: Batch, hooks: bool, between: Between = nothing
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """Returns FP8 rows by expert [..., hidden], their scales, and a handle for combine.

        `between` is called between the two halves, if there are two.
        """

    def combine(
        self, y: torch.Tensor, batch: Batch, handle: Any, hooks: bool, between: Between = nothing
    ) -> torch.Tensor: ...

    def wait(self) -> None:
        """Waits for all enqueued work."""

    def close(self) -> None: ...
