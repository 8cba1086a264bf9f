"""Deprecated: this module has moved to `tokenyard.compat.served_batch`."""

import warnings

from .compat.served_batch import ServedBatch, moved, on_stream_of_call

__all__ = ["ServedBatch", "moved", "on_stream_of_call"]

warnings.warn(
    "tokenyard.served_batch has moved to tokenyard.compat.served_batch",
    DeprecationWarning,
    stacklevel=2,
)
