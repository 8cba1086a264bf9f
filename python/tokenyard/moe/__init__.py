"""Mixture-of-experts layers in torch, with their experts spread over the ranks of a world.

    Exchange    dispatch and combine as torch operators, for autograd and torch.compile
    MoE         a layer: gate, experts, dispatch and combine

Needs torch, but no compiler.
"""

from .exchange import Dispatched, Exchange
from .layer import MoE

__all__ = ["Dispatched", "Exchange", "MoE"]


def __dir__() -> list[str]:
    """Lists the public names, so that completion does not offer internal modules."""
    return list(__all__)
