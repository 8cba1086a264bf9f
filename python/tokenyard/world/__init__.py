"""Worlds: sets of ranks that share an arena, their rendezvous, and `launch`, which starts them."""

from .launch import launch
from .network import NetworkOptions
from .processes import end_with_parent
from .world import DEFAULT_ARENA_BYTES, DEFAULT_TIMEOUT, World
from .world import check_timeout as check_timeout

__all__ = [
    "DEFAULT_ARENA_BYTES",
    "DEFAULT_TIMEOUT",
    "NetworkOptions",
    "World",
    "end_with_parent",
    "launch",
]


def __dir__() -> list[str]:
    """Lists the public names, so that completion does not offer internal modules."""
    return list(__all__)
