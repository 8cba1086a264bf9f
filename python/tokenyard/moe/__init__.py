"""Mixture-of-experts layers whose experts are spread over the ranks of a world.

    Exchange          dispatch and combine as torch operators, for autograd and torch.compile
    MoE               a layer: gate, experts, dispatch and combine
    balance_experts   an ExpertMap, with replicas, of measured loads
    measured_loads    the rows that each expert has received
    dispatch_cast     a dispatch of MXFP8 or NVFP4 rows; cast_mxfp8 and cast_nvfp4 are its casts
    tile_scales       their scales in the order of block-scaled GEMMs

The first two need torch, but no compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .balance import ExpertMap, balance_experts, measured_loads
from .casts import CastDispatched, CastRows, cast_mxfp8, cast_nvfp4, dispatch_cast, tile_scales

if TYPE_CHECKING:
    from .exchange import Dispatched, Exchange, Fp8Dispatched
    from .layer import MoE

__all__ = [
    "CastDispatched",
    "CastRows",
    "Dispatched",
    "Exchange",
    "ExpertMap",
    "Fp8Dispatched",
    "MoE",
    "balance_experts",
    "cast_mxfp8",
    "cast_nvfp4",
    "dispatch_cast",
    "measured_loads",
    "tile_scales",
]

_OF_TORCH = dict.fromkeys(("Dispatched", "Exchange", "Fp8Dispatched"), "exchange") | {
    "MoE": "layer"
}
"""Modules by name, imported on first use: balancing works without torch."""


def __getattr__(name: str) -> Any:
    if name not in _OF_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_OF_TORCH[name]}", __name__), name)


def __dir__() -> list[str]:
    """Lists the public names, so that completion does not offer internal modules."""
    return list(__all__)
