"""Collectives: operations among ranks that may die, hang, leave and join.

Collectives    one rank's part in a job
Group          ranks that operate together
Work           an operation under way
StoreServer    the store at which the ranks of a job meet
"""

from .group import Group
from .job import DEFAULT_SILENCE, Collectives
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
    """Lists what callers use, so that completion does not offer the modules that hold it."""
    return list(__all__)
