"""Formats of rows and scales: the callers' names and the module's enums."""

from __future__ import annotations

from typing import Any, NamedTuple

import _tokenyard

from ..arrays import Arrays
from ..errors import invalid
from ..sizes import size_of

IDS = ("int32", "int64")
FP32 = ("float32",)
BF16 = ("bfloat16",)
FP8 = ("float8_e4m3fn",)

SUMMED = ("bfloat16", "float16", "float32")
"""Dtypes that a throughput combine sums."""
MOVED = (*SUMMED, "float8_e4m3fn", "uint8")
"""Dtypes that a throughput dispatch moves. uint8 rows are opaque, of a multiple of 16 bytes."""
SCALES = ("float32", "int32", "uint8")

LOW_LATENCY_ROWS = ("bf16", "fp8", "fp8_rounded", "fp8_ue8m0")
"""Values of `rows=` at low latency, in the order of the module's enum."""
_CASTS: dict[str | None, Any] = {
    None: _tokenyard.CastToFp8.Scales.none,
    "bf16": _tokenyard.CastToFp8.Scales.none,
    "fp8": _tokenyard.CastToFp8.Scales.fp32,
    "fp8_ue8m0": _tokenyard.CastToFp8.Scales.packed,
}
"""Values of `rows=` for throughput, and the module's casts."""


def scale_order(by_columns: bool) -> Any:
    return _tokenyard.ScaleOrder.columns if by_columns else _tokenyard.ScaleOrder.rows


def cast_of(rows: str | None, channels: int, dtype: str) -> Any:
    """Returns the cast of rows of `dtype`; None if they travel unchanged."""
    if rows is None and channels == 128:
        return None  # The fast path: nearly every call.
    if not isinstance(rows, str | None) or rows not in _CASTS:
        raise invalid("rows", "None, " + ", ".join(map(repr, list(_CASTS)[1:])), repr(rows))
    if rows is not None and dtype != "bfloat16":
        raise invalid("rows", f"None for an x of {dtype}: only bfloat16 has formats", repr(rows))
    return _tokenyard.CastToFp8(_CASTS[rows], size_of("scale_channels", channels))


class RowForm(NamedTuple):
    """Dtypes and layout of received rows and scales."""

    dtype: str
    scale_dtype: str
    """Empty if there are no scales."""
    by_columns: bool
    """Whether scales are stored by columns."""

    def scales_of(self, native: Any, arrays: Arrays, rows: Any) -> Any:
        """Returns the scales of a native Received or ExpertRows whose rows are `rows`."""
        if not self.scale_dtype:
            return None
        words = native.scales
        if words is None:
            return None
        lie = arrays.from_bytes(words, self.scale_dtype)
        return arrays.transposed(lie, arrays.shape(rows)[0]) if self.by_columns else lie


def form_of(x: Any, scales: Any, rows: str | None, arrays: Arrays, by_columns: bool) -> RowForm:
    """Returns the form in which rows of `x` arrive."""
    if rows is not None and rows != "bf16":
        return RowForm("float8_e4m3fn", "int32" if rows == "fp8_ue8m0" else "float32", by_columns)
    return RowForm(arrays.dtype(x), "" if scales is None else arrays.dtype(scales), by_columns)
