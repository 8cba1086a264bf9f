"""Results of low-latency calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

from ..arrays import A, Arrays
from ..errors import InvalidArgument

Hook = Callable[[], None]
"""Receives the rows of a call that only sent. Call each hook once, in the order of the calls.
A dead rank makes no hook raise: `LowLatencyCombined.lost` and `failed_ranks()` tell."""


class Memory(NamedTuple):
    """Memory that a LowLatency takes on each rank."""

    arena_bytes: int
    """Bytes of the arena, reachable by peers, held until the exchange is closed."""
    device_bytes: int
    """Bytes of device memory outside the arena."""
    combine_buffer_bytes: int
    """Bytes of each of the two buffers of `combine_buffer`, allocated by its first call."""
    network_bytes: int = 0
    """Bytes shared with the network, if ranks are reached by put: in the arena, or, on GPUs, pinned
    memory of its own."""


@dataclass(frozen=True, eq=False)
class LowLatencyReceived(Generic[A]):
    """Rows that a rank received, by expert; each expert has rows_max = ranks * tokens_max places.

    The arrays are views into memory of the exchange. They are valid until this batch is combined,
    a rank is unmasked or `restart` is called. Afterwards, or once all of them are dropped, another
    batch may reuse the memory.
    """

    x: A
    """[local experts, rows_max, hidden] bfloat16 or float8_e4m3fn. Each expert's rows are packed
    from row 0, ordered by source rank, then source token; the places behind them are undefined."""
    scales: A | None
    """[local experts, rows_max, groups] float32, one scale per 128 channels; for "fp8_ue8m0"
    [local experts, rows_max, words] int32, four exponents per word; None for "bf16". Stored by
    columns: words of neighbouring rows are adjacent in memory."""
    counts: A
    """[local experts] int32: number of rows per expert."""
    ranges: A
    """[local experts, ranks, 2] int32: first row and number of rows per source rank."""
    source_token: A
    """[local experts, rows_max] int32: the token's index on its source rank."""
    hook: Hook | None
    """Receives the rows, with `return_recv_hook`: the arrays are filled once it was called."""
    _batch: Any
    _arrays: Arrays
    _weights_told: bool


class RefusedBatch(InvalidArgument):
    """This rank's arguments to a dispatch were wrong, so it took part without tokens.

    Combine `received` like any batch; otherwise the others wait for this rank's experts until they
    mask it.
    """

    received: LowLatencyReceived[Any]
    """Tokens of the other ranks. None in a copy that was pickled to another process."""

    def __reduce__(self) -> tuple[Any, ...]:
        restore, (kind, message, fields) = super().__reduce__()
        return restore, (kind, message, fields | {"received": None})


@dataclass(frozen=True, eq=False)
class LowLatencyCombined(Generic[A]):
    """Results of a low-latency combine."""

    x: A
    """[tokens, hidden] bfloat16: the weighted sums."""
    lost: A
    """[tokens] int32: number of the token's choices that x lacks, on masked ranks."""
    hook: Hook | None
    """Receives the results, with `return_recv_hook`: the arrays are filled once it was called."""


def received_of(
    batch: Any, arrays: Arrays, rows: str, hook: Hook | None, weights_told: bool
) -> LowLatencyReceived[Any]:
    """Returns a native batch as arrays of the library `arrays`."""
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
