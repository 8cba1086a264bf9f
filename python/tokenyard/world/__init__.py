"""Worlds: the ranks that work together, how they find one another, and how a launch makes them."""

from .launch import launch
from .processes import end_with_parent
from .world import DEFAULT_ARENA_BYTES, DEFAULT_TIMEOUT, World
from .world import check_timeout as check_timeout

__all__ = ["DEFAULT_ARENA_BYTES", "DEFAULT_TIMEOUT", "World", "end_with_parent", "launch"]


def __dir__() -> list[str]:
    """Lists what callers use, so that completion does not offer the modules that hold it."""
    return list(__all__)
