"""The options of a job, so that type checkers know their names and values."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

OnFailure = Literal["raise", "retry", "exclude"]
"""What an operation does that was aborted because ranks are gone."""
Places = Literal["kept", "compact"]
"""What results with a part for each rank look like once ranks are lost."""


class JobOptions(TypedDict, total=False):
    """Options of `Collectives.connect`, which explains them."""

    job: str
    size_max: int | None
    timeout: float
    silence: float
    on_failure: OnFailure
    places: Places
    witness: bool
    host_store: bool
    address: str
    host: str
    interconnect: str
    own_store: Any
