"""ExpertParallel's arguments, and checks of its arrays, made before anything is launched."""

from __future__ import annotations

from typing import Any, Generic, TypedDict

import _tokenyard

from ..arrays import A, Arrays
from ..errors import invalid
from .call_device import CallDevice
from .received import ExpertRows, Received, Route
from .row_formats import FP32, IDS, MOVED, SCALES, SUMMED, cast_of, scale_order


class CombineOptions(TypedDict, Generic[A], total=False):
    """The options of `ExpertParallel.combine`, whatever it returns."""

    out: A | None
    bias: A | tuple[A, A] | None
    rank_order: A | None
    by_expert: ExpertRows[A] | None
    weighted: bool
    sms: int
    local_sms: int


def rows_of_dispatch(
    device: CallDevice,
    hidden: int,
    x: Any,
    arrays: Arrays,
    tokens: int | str,
    scales: Any,
    by_columns: bool,
    rows: str | None,
    scale_channels: int,
) -> dict[str, Any]:
    """Checks the rows of a dispatch; returns the module's arguments that describe them."""
    dtype = arrays.dtype(x)
    device.check("x", x, arrays, MOVED, (tokens, "bytes" if dtype == "uint8" else hidden))
    cast = cast_of(rows, scale_channels, dtype)
    if scales is not None:
        _check_scales(device, scales, arrays, arrays.shape(x)[0], by_columns)
    return dict(
        type=_tokenyard.DataType[dtype],
        scales=None if scales is None else arrays.to_native(scales),
        scale_order=scale_order(by_columns),
        cast=cast,
        stream=device.stream(),
    )


def choices_of_dispatch(
    device: CallDevice, topk: int, x: Any, topk_idx: Any, topk_weights: Any, arrays: Arrays
) -> tuple[Any, Any]:
    """Checks the expert ids and weights of a dispatch; returns them, weights perhaps None."""
    shape = (arrays.shape(x)[0], topk)
    if topk_idx is None:
        raise invalid("topk_idx", f"[tokens, {topk}] expert ids, or a route", "None")
    device.check("topk_idx", topk_idx, arrays, IDS, shape)
    if topk_weights is None:
        return arrays.to_native(topk_idx), None
    device.check("topk_weights", topk_weights, arrays, FP32, shape)
    return arrays.to_native(topk_idx), arrays.to_native(topk_weights)


def dtype_of_results(
    device: CallDevice, hidden: int, y: Any, arrays: Arrays, route: Route, rows: int, out: Any
) -> str:
    """Checks the dtype of results and returns it.

    If the dispatched rows had a dtype that combine sums, y must have it too unless `out` is given,
    so that no caller changes precision by mistake.
    """
    device.check("y", y, arrays, SUMMED, (rows, hidden))
    dtype, sent = arrays.dtype(y), route._dtype
    if out is None and sent in SUMMED and dtype != sent:
        raise invalid(
            "y",
            f"dtype {sent} as the rows of the route, or `out` of y's dtype to sum in it",
            f"dtype {dtype}",
        )
    return dtype


def route_of(received: Any, argument: str = "received") -> Route:
    """Returns the route of a Received, or `received` if it is a route."""
    if isinstance(received, Received):
        return received.route
    if not isinstance(received, Route):
        raise invalid(argument, "what a dispatch returned, or its route", type(received).__name__)
    return received


def _check_scales(
    device: CallDevice, scales: Any, arrays: Arrays, tokens: int, by_columns: bool
) -> None:
    # Columns consist of 4-byte words, so scales by columns cannot be uint8.
    dtypes = SCALES if not by_columns else SCALES[:2]
    device.check("scales", scales, arrays, dtypes, (tokens, "words"))
    width = arrays.shape(scales)[1]
    if arrays.dtype(scales) == "uint8" and width % 4:
        raise invalid("scales", "rows of a multiple of 4 bytes", f"{width} bytes")
