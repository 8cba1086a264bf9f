"""What dispatch and combine give back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from .arrays import Arrays

A = TypeVar("A")
"""A NumPy array, or a torch tensor: results are of the kind that came in."""


class Route:
    """Where each token of a dispatch went: what combine needs, and a repeated dispatch.

    Made by `ExpertParallel.dispatch`. It and the arrays received with it share the memory that they
    lie in, which is given back when the last of them has died.
    """

    def __init__(self, native: Any, arrays: Arrays) -> None:
        self._native = native
        self._arrays = arrays

    @property
    def tokens(self) -> int:
        """How many tokens this rank dispatched."""
        return self._native.tokens

    @property
    def rows_received(self) -> int:
        """How many rows this rank received."""
        return self._native.rows_received

    def __repr__(self) -> str:
        return f"Route(tokens={self.tokens}, rows_received={self.rows_received})"


@dataclass(frozen=True, eq=False)
class ExpertRows(Generic[A]):
    """Received rows grouped by expert, ready for a grouped GEMM: `ExpertParallel.expand`.

    The arrays are views into this rank's arena and keep it alive.
    """

    x: A
    """[rows, hidden]: an expert's rows together, in the order received, then zeros."""
    scales: A | None
    """[rows, words] as received, or a transposed view if asked for by columns."""
    offsets: A
    """[experts of this rank + 1] int32: each expert's first row, on the device."""
    row_of: A
    """[rows] int32: which received row it is, -1 for padding."""
    weights: A
    """[rows] float32: its routing weight, 0 for padding."""
    slots: A
    """[rows received, topk] int32: where each choice's row lies, -1 where it is elsewhere."""
    first_rows: list[int]
    """`offsets` for the host; empty where it has not waited for the counts."""
    native: Any
    """For `combine`."""


@dataclass(frozen=True, eq=False)
class Received(Generic[A]):
    """What a rank received: rows in the order of their source rank, then their source token.

    The arrays are views into this rank's arena and keep it alive; nothing was copied.
    """

    x: A
    """[rows, hidden] of the dtype that was sent: the tokens."""
    scales: A | None
    """[rows, words]: the tokens' scales. By columns it is a transposed view, whose columns lie
    together and begin 16 bytes aligned. None if there are none."""
    topk_idx: A
    """[rows, topk] int32: experts as numbered on this rank, -1 where the expert is elsewhere."""
    topk_weights: A
    """[rows, topk] float32: their weights, 0 where the expert is elsewhere."""
    source_token: A
    """[rows] int32: the token's index on its source rank."""
    rows_from: list[int]
    """[ranks] rows received from each rank; empty with `received_tokens_max`."""
    tokens_per_expert: list[int]
    """[experts of this rank] rows that name each expert; empty with `received_tokens_max`."""
    rows_from_on_device: A
    """[ranks] int32: the same on the device, once the call's work is done."""
    tokens_per_expert_on_device: A
    """[experts of this rank] int32: likewise."""
    route: Route
    """For `combine`, and for dispatching again."""
    native: Any
    """For `expand`."""


@dataclass(frozen=True, eq=False)
class Combined(Generic[A]):
    """What came home from a combine with weights."""

    x: A
    """[tokens, hidden] of y's dtype: the sums."""
    topk_weights: A
    """[tokens, topk] float32: the weights that came beside the rows."""


@dataclass(frozen=True)
class Load:
    """What an exchange has counted on its device since it was made."""

    tokens_per_expert: list[int]
    """[experts of this rank] rows that name each."""
    waited_us: list[float]
    """[ranks] microseconds that calls here have waited for each rank: the slow one stands out."""


class Moment(NamedTuple):
    """A moment of a call on one block."""

    block: int
    name: str
    """In order: begun, counted, greeted, known, routed, moved, told, finished, ended."""
    ns: int
    """Of the device's clock."""
