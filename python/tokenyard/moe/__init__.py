"""Mixture-of-experts layers in torch, whose experts are spread over the ranks of a world.

    Exchange    dispatch and combine that torch differentiates and compiles
    MoE         a layer: gate, experts, dispatch and combine

Needs torch, and no compiler.
"""

from .exchange import Dispatched, Exchange
from .layer import MoE

__all__ = ["Dispatched", "Exchange", "MoE"]


def __dir__() -> list[str]:
    """Lists what callers use, so that completion does not offer the modules that hold it."""
    return list(__all__)
