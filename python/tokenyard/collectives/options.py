"""The options of a job, typed for type checkers."""

from __future__ import annotations

from os import PathLike
from typing import Any, Literal, TypedDict

OnFailure = Literal["raise", "retry", "exclude"]
"""Handling of operations that were aborted because ranks were lost."""
Places = Literal["kept", "compact"]
"""The form of lists with one part per rank after ranks were lost."""


class JobOptions(TypedDict, total=False):
    """Options of `tokenyard.connect`, documented there."""

    secret_file: str | PathLike[str] | None
    local_rank: int | None
    job: str
    size_max: int | None
    timeout: float
    silence: float
    on_failure: OnFailure
    places: Places
    eager_limit: int
    witness: bool
    host_store: bool
    address: str
    host: str
    own_store: Any
