"""Results of throughput dispatch and combine."""

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
    """The position of each token's row on each rank, for combine and for repeated dispatches.

    `ExpertParallel.dispatch` makes it. It keeps the arena memory of what travelled beside the rows
    (ids, weights, source indices), but not that of `x` and `scales`.
    """

    def __init__(self, native: Any, arrays: Arrays, dtype: str) -> None:
        self._native: _tokenyard.Route = native
        self._arrays = arrays
        self._dtype = dtype
        """Dtype of the rows in transit."""

    @property
    def tokens(self) -> int:
        """Number of tokens that this rank dispatched."""
        return self._native.tokens

    @property
    def rows_received(self) -> int:
        """Number of rows that this rank received."""
        return self._native.rows_received

    @property
    def row_on(self) -> Any:
        """[tokens, ranks] int32 on the device: index of each token's row on each rank, or -1.

        Valid once the dispatch has run.
        """
        return self._arrays.from_native(self._native.row_on, "int32")

    def __repr__(self) -> str:
        return f"Route(tokens={self.tokens}, rows_received={self.rows_received})"


class Arrived(Generic[A]):
    """Rows in this rank's arena. Array objects are created on first access."""

    def __init__(self, native: Any, arrays: Arrays, form: RowForm) -> None:
        """Wraps native rows; not for users: see the methods of `ExpertParallel`."""
        self.native = native
        self._arrays, self._form = arrays, form

    def record_stream(self, stream: Any) -> None:
        """Marks the arrays as used on a torch stream, like `torch.Tensor.record_stream`.

        When the arrays are dropped, their memory is not reused before the work that `stream` holds
        then has ended. The stream of the call needs no mark.
        """
        self.native.record_stream(stream_number("stream", stream))

    def _array(self, words: Any, dtype: str) -> A:
        """Returns words of the arena as an array that keeps them alive."""
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

    The arrays are views into this rank's arena and keep their memory alive. Array objects are
    created on first access.
    """

    native: _tokenyard.ExpertRows

    def forget_rows(self) -> None:
        """Drops `x` and `scales`; their memory is free once arrays made of them are dropped, too.

        Keeps what `combine(by_expert=)` reads, 8 bytes per row and 4 per choice, for example until
        the backward pass.
        """
        self.native.forget_rows()
        for name in ("x", "scales"):
            self.__dict__.pop(name, None)

    @property
    def rows(self) -> int:
        """Number of rows, padding included; number of places if the host has not seen counts."""
        return self.native.rows

    @cached_property
    def x(self) -> A:
        """[rows, hidden]: rows grouped by expert, in the order received, each group padded.

        Padding is zeros, or undefined with `clear_padding=False`.
        """
        x = self.native.x
        if x is None:
            raise invalid("x", "asked for before forget_rows()", "rows that were forgotten")
        return self._rows(x)

    @cached_property
    def scales(self) -> A | None:
        """[rows, words]: scales as received, or a transposed view with `scales_by_columns`."""
        return self._scales(self.x)

    @cached_property
    def offsets(self) -> A:
        """[local experts + 1] int32 on the device: first row of each expert, then the end."""
        return self._array(self.native.offsets, "int32")

    @cached_property
    def row_of(self) -> A:
        """[rows] int32: index of the received row, -1 for padding."""
        return self._array(self.native.row_of, "int32")

    @cached_property
    def weights(self) -> A:
        """[rows] float32: routing weight, 0 for padding."""
        return self._array(self.native.weights, "float32")

    @cached_property
    def row_of_choice(self) -> A:
        """[rows received, topk] int32: row of each choice here, -1 if its expert is elsewhere."""
        return self._array(self.native.row_of_choice, "int32")

    @property
    def slots(self) -> A:
        """Deprecated: use `row_of_choice`."""
        old_spellings.warn("slots", "row_of_choice")
        return self.row_of_choice

    @cached_property
    def first_rows(self) -> list[int]:
        """`offsets` on the host; empty if the host has not waited for the counts."""
        return self.native.first_rows


class Received(Arrived[A]):
    """Rows that a rank received, ordered by source rank, then source token.

    The arrays are uncopied views into this rank's arena and keep their memory alive: `x` and
    `scales` the rows, the others what travelled beside them. Array objects are created on first
    access.
    """

    native: _tokenyard.Received

    @cached_property
    def route(self) -> Route:
        """The route of these rows, for `combine` and for repeated dispatches."""
        return Route(self.native.route, self._arrays, self._form.dtype)

    @cached_property
    def x(self) -> A:
        """[rows, hidden] in the dtype that was sent: the tokens."""
        if self.native.x is None:
            raise invalid("x", "asked of the ExpertRows", "rows that were grouped as they came")
        return self._rows(self.native.x)

    @cached_property
    def scales(self) -> A | None:
        """[rows, words]: the tokens' scales; None if there are none.

        With `scales_by_columns` a transposed view: each column is contiguous and 16-byte aligned.
        """
        return self._scales(self.x)

    @cached_property
    def topk_idx(self) -> A:
        """[rows, topk] int32: local expert index, -1 if the expert is on another rank."""
        return self._array(self.native.topk_idx, "int32")

    @cached_property
    def topk_weights(self) -> A:
        """[rows, topk] float32: routing weights, 0 if the expert is on another rank.

        1 for experts of this rank if the dispatch had no weights.
        """
        return self._array(self.native.topk_weights, "float32")

    @cached_property
    def source_token(self) -> A:
        """[rows] int32: the token's index on its source rank."""
        return self._array(self.native.source_token, "int32")

    @cached_property
    def lost(self) -> A | None:
        """[tokens dispatched here] int32: how many choices of each have an expert without a place.

        None without an expert map, or without tokens.
        """
        lost = self.native.lost
        return None if lost is None else self._array(lost, "int32")

    @cached_property
    def rows_from(self) -> list[int]:
        """[ranks] number of rows from each rank; empty with `received_tokens_max`."""
        return self.native.rows_from

    @cached_property
    def tokens_per_expert(self) -> list[int]:
        """[local experts] number of rows that name each expert; empty with
        `received_tokens_max`."""
        return self.native.tokens_per_expert

    @cached_property
    def rows_from_on_device(self) -> A:
        """[ranks] int32: `rows_from` on the device; valid once the call has run."""
        return self._array(self.native.rows_from_on_device, "int32")

    @cached_property
    def tokens_per_expert_on_device(self) -> A:
        """[local experts] int32: `tokens_per_expert` on the device; valid once the call has run."""
        return self._array(self.native.tokens_per_expert_on_device, "int32")

    @cached_property
    def sources_ready(self) -> A | None:
        """[ranks] int32: 1 once all rows of that source have arrived; None without `watcher`."""
        words = self.native.sources_ready
        return None if words is None else self._array(words, "int32")

    @cached_property
    def experts_ready(self) -> A | None:
        """[local experts] int32: 1 once all rows that name it have arrived; None without
        `watcher`."""
        words = self.native.experts_ready
        return None if words is None else self._array(words, "int32")


@dataclass(frozen=True, eq=False)
class Combined(Generic[A]):
    """Results of a combine with `topk_weights`."""

    x: A
    """[tokens, hidden] of y's dtype: the sums."""
    topk_weights: A
    """[tokens, topk] float32: the weights that travelled beside the rows."""


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
    network_bytes: int
    """Bytes of the rings between hosts: in the arena, too, or on GPUs in memory that the network
    has registered."""


class Rings(NamedTuple):
    """How BF16 rows travel between hosts. All zero inside a host."""

    links: int
    """Ranks of other hosts that this rank exchanges rows with."""
    ring_rows: int
    """Rows in the ring of each."""
    chunk_rows: int
    """Rows per put and per credit, at least, while more are to come."""
    put_rows: int
    """Rows per put, at most."""
    bytes: int
    """Bytes of all rings and of the stages that the network reads."""


@dataclass(frozen=True)
class Load:
    """Totals that an exchange has counted on its device since it was made."""

    tokens_per_expert: list[int]
    """[local experts] number of received rows that name each expert."""
    waited_us: list[float]
    """[ranks] microseconds that calls here have waited for each rank; shows the slow one."""


class Moment(NamedTuple):
    """A point that one block of a traced call has reached."""

    block: int
    """Index of the block."""
    name: str
    """Name of the point, such as "counted"; see docs/reading_the_trace.md."""
    ns: int
    """Nanoseconds of the device's clock."""
