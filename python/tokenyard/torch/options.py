"""What a torch job may choose."""

from __future__ import annotations

from dataclasses import dataclass

from ..collectives import DEFAULT_SILENCE
from ..collectives.options import OnFailure, Places


@dataclass
class Options:
    """For `init_process_group("tokenyard", pg_options=tokenyard.torch.Options(...))`.

    The first group of a process makes its job; later groups take its options.
    """

    on_failure: OnFailure = "raise"
    """What an operation does that was aborted because ranks are gone; see Collectives.connect."""
    places: Places = "kept"
    """What outputs with a part for each rank look like once ranks are lost; see
    Collectives.connect."""
    silence: float = DEFAULT_SILENCE
    """Seconds after which a rank that is not heard of is gone."""
    join: bool = False
    """Take a lost rank's place in a job that runs, or a new one, instead of beginning a job."""
    alone_first: bool = False
    """With `join`: compute alone, every other place being empty, until `join_group`."""
    size_max: int | None = None
    """How far the job may grow: its largest size."""
    witness: bool = True
    """Whether torch's store decides between two equal halves. It should not live in a rank."""
    address: str = ""
    """Where others reach this rank; found out if empty."""
    host: str = ""
    """Ranks with equal names share memory; found out if empty."""
    interconnect: str = ""
    """A plug-in that carries what would go over TCP, "libtokenyard_ucx.so" for one, alike on all
    ranks; none if empty."""
