"""What dispatch and combine give back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple

import _tokenyard

from ..arrays import A, Arrays, stream_number
from ..errors import invalid
from . import old_spellings
from .row_formats import RowForm


class Route:
    """Where each token of a dispatch went: what combine needs, and a repeated dispatch.

    Made by `ExpertParallel.dispatch`. Of the arena it keeps what travelled beside the rows; `x` and
    `scales` do not live on with it.
    """

    def __init__(self, native: Any, arrays: Arrays, dtype: str) -> None:
        self._native: _tokenyard.Route = native
        self._arrays = arrays
        self._dtype = dtype
        """Of the rows as they travelled."""

    @property
    def tokens(self) -> int:
        """How many tokens this rank dispatched."""
        return self._native.tokens

    @property
    def rows_received(self) -> int:
        """How many rows this rank received."""
        return self._native.rows_received

    @property
    def row_on(self) -> Any:
        """[tokens, ranks] int32: the row that each token became on each rank, or -1; on the device,
        once the dispatch's work is done."""
        return self._arrays.from_native(self._native.row_on, "int32")

    def __repr__(self) -> str:
        return f"Route(tokens={self.tokens}, rows_received={self.rows_received})"


class Arrived(Generic[A]):
    """Rows in this rank's arena. Its arrays are made when they are asked for."""

    def __init__(self, native: Any, arrays: Arrays, form: RowForm) -> None:
        """Not for callers."""
        self.native = native
        self._arrays, self._form = arrays, form

    def record_stream(self, stream: Any) -> None:
        """Also used on this torch stream: when the arrays have died, their memory goes to nobody
        else before what the stream holds then has ended. On the stream of the call it always is
        so."""
        self.native.record_stream(stream_number("stream", stream))

    def _array(self, words: Any, dtype: str) -> A:
        """Returns words of the arena as an array, which keeps them alive."""
        array: A = self._arrays.from_native(words, dtype)
        return array

    def _rows(self, rows: Any) -> A:
        array: A = self._arrays.from_bytes(rows, self._form.dtype)
        return array

    def _scales(self, rows: A) -> A | None:
        array: A | None = self._form.scales_of(self.native, self._arrays, rows)
        return array


class ExpertRows(Arrived[A]):
    """Received rows grouped by expert, ready for a grouped GEMM.

    `ExpertParallel.group_by_expert` and `dispatch_by_expert` return them.

    The arrays are views into this rank's arena and keep it alive; each is made when it is asked
    for.
    """

    native: _tokenyard.ExpertRows

    def forget_rows(self) -> None:
        """Lets `x` and `scales` go, once they were asked for: arrays made of them live on, and
        their memory is free when those have died. What `combine(by_expert=)` reads stays, 8 bytes a
        row and 4 a choice, as for a trainer that keeps it until the backward pass."""
        self.native.forget_rows()
        for name in ("x", "scales"):
            self.__dict__.pop(name, None)

    @property
    def rows(self) -> int:
        """How many, padding included; places for them where no host has waited."""
        return self.native.rows

    @cached_property
    def x(self) -> A:
        """[rows, hidden]: an expert's rows together, in the order received, then zeros."""
        x = self.native.x
        if x is None:
            raise invalid("x", "asked for before forget_rows()", "rows that were forgotten")
        return self._rows(x)

    @cached_property
    def scales(self) -> A | None:
        """[rows, words] as received, or a transposed view if asked for by columns."""
        return self._scales(self.x)

    @cached_property
    def offsets(self) -> A:
        """[experts of this rank + 1] int32: each expert's first row, on the device."""
        return self._array(self.native.offsets, "int32")

    @cached_property
    def row_of(self) -> A:
        """[rows] int32: which received row it is, -1 for padding."""
        return self._array(self.native.row_of, "int32")

    @cached_property
    def weights(self) -> A:
        """[rows] float32: its routing weight, 0 for padding."""
        return self._array(self.native.weights, "float32")

    @cached_property
    def row_of_choice(self) -> A:
        """[rows received, topk] int32: each choice's row by expert, -1 where it is elsewhere."""
        return self._array(self.native.row_of_choice, "int32")

    @property
    def slots(self) -> A:
        """Deprecated: `row_of_choice` is its name now."""
        old_spellings.warn("slots", "row_of_choice")
        return self.row_of_choice

    @cached_property
    def first_rows(self) -> list[int]:
        """`offsets` for the host; empty where it has not waited for the counts."""
        return self.native.first_rows


class Received(Arrived[A]):
    """What a rank received: rows in the order of their source rank, then their source token.

    The arrays are views into this rank's arena and keep it alive; nothing was copied. Each is made
    when it is asked for. `x` and `scales` keep the rows, the others what travelled beside them.
    """

    native: _tokenyard.Received

    @cached_property
    def route(self) -> Route:
        """For `combine`, and for dispatching again."""
        return Route(self.native.route, self._arrays, self._form.dtype)

    @cached_property
    def x(self) -> A:
        """[rows, hidden] of the dtype that was sent: the tokens."""
        if self.native.x is None:
            raise invalid("x", "asked of the ExpertRows", "rows that were grouped as they came")
        return self._rows(self.native.x)

    @cached_property
    def scales(self) -> A | None:
        """[rows, words]: the tokens' scales. By columns it is a transposed view, whose columns lie
        together and begin 16 bytes aligned. None if there are none."""
        return self._scales(self.x)

    @cached_property
    def topk_idx(self) -> A:
        """[rows, topk] int32: experts as numbered on this rank, -1 where the expert is
        elsewhere."""
        return self._array(self.native.topk_idx, "int32")

    @cached_property
    def topk_weights(self) -> A:
        """[rows, topk] float32: their weights, 0 where the expert is elsewhere; 1 where it is here
        and none were given."""
        return self._array(self.native.topk_weights, "float32")

    @cached_property
    def source_token(self) -> A:
        """[rows] int32: the token's index on its source rank."""
        return self._array(self.native.source_token, "int32")

    @cached_property
    def rows_from(self) -> list[int]:
        """[ranks] rows received from each rank; empty with `received_tokens_max`."""
        return self.native.rows_from

    @cached_property
    def tokens_per_expert(self) -> list[int]:
        """[experts of this rank] rows that name each expert; empty with `received_tokens_max`."""
        return self.native.tokens_per_expert

    @cached_property
    def rows_from_on_device(self) -> A:
        """[ranks] int32: the same on the device, once the call's work is done."""
        return self._array(self.native.rows_from_on_device, "int32")

    @cached_property
    def tokens_per_expert_on_device(self) -> A:
        """[experts of this rank] int32: likewise."""
        return self._array(self.native.tokens_per_expert_on_device, "int32")

    @cached_property
    def sources_ready(self) -> A | None:
        """[ranks] int32: 1 once all rows of that source are here; None without a `watcher`."""
        words = self.native.sources_ready
        return None if words is None else self._array(words, "int32")

    @cached_property
    def experts_ready(self) -> A | None:
        """[experts of this rank] int32: 1 once all rows that name it are; None likewise."""
        words = self.native.experts_ready
        return None if words is None else self._array(words, "int32")


@dataclass(frozen=True, eq=False)
class Combined(Generic[A]):
    """What came home from a combine with weights."""

    x: A
    """[tokens, hidden] of y's dtype: the sums."""
    topk_weights: A
    """[tokens, topk] float32: the weights that came beside the rows."""


class DispatchMemory(NamedTuple):
    """Arena memory that an ExpertParallel and one of its dispatches take on each rank."""

    arena_bytes: int
    """Bytes of the exchange itself, as long as it lives. Where `sms` is 0, those of a GPU: a host
    takes less."""
    peak_bytes: int
    """Bytes of a dispatch while its number of rows is unknown."""
    kept_bytes: int
    """Bytes of its results and route, once the number is known."""
    kept_by_route_bytes: int
    """Those of `kept_bytes` that the route keeps once the rows have died."""


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
    """One of those that docs/reading_the_trace.md explains, such as "counted"."""
    ns: int
    """Of the device's clock."""
