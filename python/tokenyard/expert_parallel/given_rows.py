"""What is checked of arrays that callers give to an exchange."""

from __future__ import annotations

from typing import Any

import _tokenyard

from ..arrays import Arrays, stream_number
from ..errors import invalid
from .exchange import Exchange
from .received import Route
from .row_formats import ROWS, SCALES, SUMMED, cast_of, scale_order

IDS = ("int32", "int64")
FP32 = ("float32",)


class GivenRows(Exchange):
    """Nothing is launched before this is content."""

    def _common(
        self,
        x: Any,
        arrays: Arrays,
        tokens: int | str,
        scales: Any,
        by_columns: bool,
        as_fp8: bool | str,
        scale_channels: int,
    ) -> dict[str, Any]:
        """What every dispatch says of its rows, checked."""
        kind = self._check_rows(x, arrays, tokens)
        cast = cast_of(as_fp8, scale_channels)
        if scales is not None:
            self._check_scales(scales, arrays, arrays.shape(x)[0], by_columns)
        return dict(
            type=kind,
            scales=None if scales is None else arrays.to_native(scales),
            scale_order=scale_order(by_columns),
            cast=cast,
            stream=self._stream(),
        )

    def _choices(self, x: Any, topk_idx: Any, topk_weights: Any, arrays: Arrays) -> tuple[Any, Any]:
        """The experts of each token and their weights, or None for these, checked."""
        shape = (arrays.shape(x)[0], self.topk)
        if topk_idx is None:
            raise invalid("topk_idx", f"[tokens, {self.topk}] expert ids, or a route", "None")
        self._check("topk_idx", topk_idx, arrays, IDS, shape)
        if topk_weights is None:
            return arrays.to_native(topk_idx), None
        self._check("topk_weights", topk_weights, arrays, FP32, shape)
        return arrays.to_native(topk_idx), arrays.to_native(topk_weights)

    def _check_results(self, y: Any, arrays: Arrays, route: Route, rows: int, out: Any) -> str:
        """Their dtype. Nobody converts results by mistake: those of a route whose rows were of a
        dtype that is summed have this dtype, unless `out` says otherwise."""
        self._check("y", y, arrays, SUMMED, (rows, self.hidden))
        dtype, sent = arrays.dtype(y), route._dtype
        if out is None and sent in SUMMED and dtype != sent:
            raise invalid(
                "y",
                f"dtype {sent} as the rows of the route, or `out` of y's dtype to sum in it",
                f"dtype {dtype}",
            )
        return dtype

    def _watching(self, watcher: Any) -> int | None:
        """The stream, as the module takes it."""
        if watcher is None:
            return None
        return 0 if self._device_index is None else stream_number("watcher", watcher)

    def _check_rows(self, x: Any, arrays: Arrays, tokens: int | str) -> Any:
        """Their ElementType."""
        opaque = arrays.dtype(x) == "uint8"
        self._check("x", x, arrays, ROWS, (tokens, "bytes" if opaque else self.hidden))
        return _tokenyard.ElementType[arrays.dtype(x)]

    def _check_scales(self, scales: Any, arrays: Arrays, tokens: int, by_columns: bool) -> None:
        # A column is of words, so what lies in it must be.
        dtypes = SCALES if not by_columns else SCALES[:2]
        self._check("scales", scales, arrays, dtypes, (tokens, "words"))
        width = arrays.shape(scales)[1]
        if arrays.dtype(scales) == "uint8" and width % 4:
            raise invalid("scales", "rows of a multiple of 4 bytes", f"{width} bytes")


def check_route(route: Any) -> None:
    if not isinstance(route, Route):
        raise invalid("route", "a Route from a dispatch", type(route).__name__)
