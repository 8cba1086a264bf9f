"""Rows of the low-latency exchange: their formats, and what a batch holds as arrays."""

from __future__ import annotations

from typing import Any

from ..arrays import NUMPY, Arrays, library_of
from .low_latency_results import Hook, LowLatencyReceived

BF16 = ("bfloat16",)
FP8 = ("float8_e4m3fn",)
IDS = ("int32", "int64")
FP32 = ("float32",)

ROWS = ("bf16", "fp8", "fp8_rounded", "fp8_ue8m0")
"""What a dispatch can deliver, in the order of the native enum."""


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


def arrays_like(given: tuple[Any, ...], device_index: int | None) -> Arrays:
    """Returns the library of the first of `given` that is an array, or the device's usual one."""
    for array in given:
        if (library := library_of(array)) is not None:
            return library
    if device_index is None:
        return NUMPY
    from ..torch_arrays import TORCH

    return TORCH


def _scales(arrays: Arrays, native: Any, rows: str) -> Any:
    columns = arrays.from_native(native, "int32")
    if rows != "fp8_ue8m0":
        columns = arrays.bits(columns, "float32")
    return columns.swapaxes(1, 2)
