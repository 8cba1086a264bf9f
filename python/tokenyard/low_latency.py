"""Deprecated: this module has moved to `tokenyard.expert_parallel`."""

import warnings

from .expert_parallel import LowLatency

__all__ = ["LowLatency"]

warnings.warn(
    "tokenyard.low_latency has moved: use tokenyard.LowLatency",
    DeprecationWarning,
    stacklevel=2,
)
