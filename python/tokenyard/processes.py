"""Deprecated: `end_with_parent` has moved to `tokenyard.world`."""

import warnings

from .world import end_with_parent

__all__ = ["end_with_parent"]

warnings.warn(
    "tokenyard.processes has moved: use tokenyard.world.end_with_parent",
    DeprecationWarning,
    stacklevel=2,
)
