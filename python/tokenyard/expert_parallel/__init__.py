"""Dispatch sends each token to the ranks that hold its experts; combine returns the results.

    ExpertParallel    for training and prefill: any number of tokens, rows ordered by source
    LowLatency        for decoding: few tokens, rows by expert, receive hooks, masked ranks

Both are called the same way: `received = dispatch(x, topk_idx, topk_weights)`, then
`combine(y, received)`.
"""

from .batches import LowLatencyCombined, LowLatencyReceived, Memory, RefusedBatch
from .held_experts import spread_lost_experts
from .low_latency import LowLatency
from .received import Combined, DispatchMemory, ExpertRows, Load, Moment, Received, Rings, Route
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
    "Rings",
    "Route",
    "spread_lost_experts",
]


def __dir__() -> list[str]:
    """Lists the public names, so that completion does not offer internal modules."""
    return list(__all__)
