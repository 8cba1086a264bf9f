"""Batches of the low-latency exchange: what its calls return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

from ..arrays import A, Arrays
from ..errors import InvalidArgument

Hook = Callable[[], None]
"""The second half of a call: receives. To be called once, in the order of the first halves."""


class Memory(NamedTuple):
    """Memory of a LowLatency on each rank."""

    arena_bytes: int
    """Bytes of the arena, which peers reach, as long as the exchange lives."""
    device_bytes: int
    """Bytes beside the arena."""
    combine_buffer_bytes: int
    """Bytes of each of the two buffers that `combine_buffer` returns, made when it is first
    called."""


@dataclass(frozen=True, eq=False)
class LowLatencyReceived(Generic[A]):
    """What a rank received, by expert. Each has room for rows_max = ranks * tokens_max rows.

    The arrays are views into memory of the exchange. They hold until this batch's combine, or until
    a rank is unmasked or calls restart; another batch takes the memory after that, or once the last
    of them is gone.
    """

    x: A
    """[local experts, rows_max, hidden] bfloat16 or float8_e4m3fn. An expert's rows lie packed from
    row 0, by source rank, then source token; what lies after means nothing."""
    scales: A | None
    """[local experts, rows_max, groups] float32, a scale for 128 channels; for "fp8_ue8m0"
    [local experts, rows_max, words] int32 of four exponents each; None for "bf16". The words of
    neighbouring rows lie next to one another in memory."""
    counts: A
    """[local experts] int32: rows of each expert."""
    ranges: A
    """[local experts, ranks, 2] int32: a source rank's first row, and how many it has."""
    source_token: A
    """[local experts, rows_max] int32: the token's index on its source rank."""
    hook: Hook | None
    """With `return_recv_hook`: brings all of the above."""
    _batch: Any
    _arrays: Arrays
    _weights_told: bool


class RefusedBatch(InvalidArgument):
    """A dispatch was refused for what this rank gave to it, and made without this rank's tokens.

    Where nobody combines `received`, the others wait for this rank's experts until they mask it.
    """

    received: LowLatencyReceived[Any]
    """The others' tokens, and none of this rank's. In another process only None of it arrives."""

    def __reduce__(self) -> tuple[Any, ...]:
        restore, (kind, message, fields) = super().__reduce__()
        return restore, (kind, message, fields | {"received": None})


@dataclass(frozen=True, eq=False)
class LowLatencyCombined(Generic[A]):
    """What a combine brings home."""

    x: A
    """[tokens, hidden] bfloat16."""
    lost: A
    """[tokens] int32: picks whose experts are on masked ranks, which x lacks."""
    hook: Hook | None
    """With `return_recv_hook`: brings both."""


def received_of(
    batch: Any, arrays: Arrays, rows: str, hook: Hook | None, weights_told: bool
) -> LowLatencyReceived[Any]:
    """Returns a native batch as arrays of a library."""
    return LowLatencyReceived(
        x=arrays.from_native(batch.x, "bfloat16" if rows == "bf16" else "float8_e4m3fn"),
        scales=None if rows == "bf16" else _scales(arrays, batch.scales, rows),
        counts=arrays.from_native(batch.counts, "int32"),
        ranges=arrays.from_native(batch.ranges, "int32"),
        source_token=arrays.from_native(batch.source_token, "int32"),
        hook=hook,
        _batch=batch,
        _arrays=arrays,
        _weights_told=weights_told,
    )


def _scales(arrays: Arrays, native: Any, rows: str) -> Any:
    columns = arrays.from_native(native, "int32")
    if rows != "fp8_ue8m0":
        columns = arrays.bits(columns, "float32")
    return columns.swapaxes(1, 2)
