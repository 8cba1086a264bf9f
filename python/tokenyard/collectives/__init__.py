"""Collective operations among ranks that may die, hang, leave and join.

Collectives    the groups and operations of a job
Group          ranks that run operations together
Work           a handle to an operation in progress
StoreServer    serves the store through which the ranks of a job rendezvous
"""

from ..membership import DEFAULT_SILENCE
from .collectives import Collectives
from .group import Group
from .options import JobOptions, OnFailure, Places
from .store_server import StoreServer
from .work import Work

__all__ = [
    "DEFAULT_SILENCE",
    "Collectives",
    "Group",
    "JobOptions",
    "OnFailure",
    "Places",
    "StoreServer",
    "Work",
]


def __dir__() -> list[str]:
    """Lists the public names, so that completion does not offer internal modules."""
    return list(__all__)
