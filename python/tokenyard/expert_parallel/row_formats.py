"""What rows and their scales are made of, as the module takes them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import _tokenyard

from ..arrays import Arrays
from ..errors import invalid
from ..sizes import size_of

SUMMED = ("bfloat16", "float16", "float32")
"""What combine adds up."""
ROWS = (*SUMMED, "float8_e4m3fn", "uint8")
"""What dispatch moves: uint8 is rows of opaque bytes, of any width that is a multiple of 16."""
SCALES = ("float32", "int32", "uint8")

CASTS: dict[bool | str, Any] = {
    False: _tokenyard.CastToFp8.Scales.none,
    "": _tokenyard.CastToFp8.Scales.none,
    True: _tokenyard.CastToFp8.Scales.fp32,
    "float32": _tokenyard.CastToFp8.Scales.fp32,
    "ue8m0": _tokenyard.CastToFp8.Scales.packed,
}


def scale_order(by_columns: bool) -> Any:
    return _tokenyard.ScaleOrder.columns if by_columns else _tokenyard.ScaleOrder.rows


def cast_of(as_fp8: bool | str, channels: int) -> Any:
    """None if rows travel as they are."""
    if as_fp8 is False and channels == 128:
        return None  # What nearly every call says.
    if not isinstance(as_fp8, Hashable) or as_fp8 not in CASTS:
        raise invalid("as_fp8", 'True, "float32", "ue8m0" or False', repr(as_fp8))
    return _tokenyard.CastToFp8(CASTS[as_fp8], size_of("scale_channels", channels))


class RowForm(NamedTuple):
    """How rows that have come are to be read."""

    dtype: str
    scale_dtype: str
    """Empty if there are no scales."""
    by_columns: bool
    """How the scales lie."""

    def scales_of(self, native: Any, arrays: Arrays, rows: Any) -> Any:
        """Of a native Received or ExpertRows, whose `rows` are given."""
        if not self.scale_dtype:
            return None
        words = native.scales
        if words is None:
            return None
        lie = arrays.from_bytes(words, self.scale_dtype)
        return arrays.transposed(lie, arrays.shape(rows)[0]) if self.by_columns else lie


def form_of(x: Any, scales: Any, as_fp8: bool | str, arrays: Arrays, by_columns: bool) -> RowForm:
    """Of rows that come of these."""
    if as_fp8:
        return RowForm("float8_e4m3fn", "int32" if as_fp8 == "ue8m0" else "float32", by_columns)
    return RowForm(arrays.dtype(x), "" if scales is None else arrays.dtype(scales), by_columns)
