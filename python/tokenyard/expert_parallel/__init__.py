"""Dispatch and combine: every token to the ranks that hold its experts, and the results home.

    ExpertParallel    for throughput: any number of tokens, rows in the order of their sources
    LowLatency        for serving: few tokens, rows by expert, hooks, ranks that may die

Both are called alike: `received = dispatch(x, topk_idx, topk_weights)`, then
`combine(y, received)`.
"""

from .batches import LowLatencyCombined, LowLatencyReceived, Memory, RefusedBatch
from .low_latency import LowLatency
from .received import Combined, DispatchMemory, ExpertRows, Load, Moment, Received, Route
from .throughput import ExpertParallel

__all__ = [
    "Combined",
    "DispatchMemory",
    "ExpertParallel",
    "ExpertRows",
    "Load",
    "LowLatency",
    "LowLatencyCombined",
    "LowLatencyReceived",
    "Memory",
    "Moment",
    "Received",
    "RefusedBatch",
    "Route",
]


def __dir__() -> list[str]:
    """Lists what callers use, so that completion does not offer the modules that hold it."""
    return list(__all__)
