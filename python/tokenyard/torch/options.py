"""The options of a torch job."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..collectives import DEFAULT_SILENCE
from ..collectives.options import OnFailure, Places


@dataclass
class Options:
    """Options of `init_process_group("tokenyard", pg_options=tokenyard.torch.Options(...))`.

    The first group of a process starts its job, whose options later groups share.
    """

    on_failure: OnFailure = "raise"
    """Handling of operations that were aborted because ranks were lost: "raise", "retry" or
    "exclude"; see Collectives.connect."""
    places: Places = "kept"
    """Form of outputs with one part per rank after ranks were lost: "kept" or "compact"; see
    Collectives.connect."""
    eager_limit: int | None = None
    """Bytes, from 0 to 8192, up to which a send of a CPU tensor ends once it is copied; that of a
    longer one ends once its receiver has it. Of this group and this rank; None: that of the job,
    which its first group sets, 8192 unless given. See Collectives.connect."""
    silence: float = DEFAULT_SILENCE
    """Seconds without a heartbeat after which a rank counts as gone."""
    join: bool = False
    """Whether to join a running job, in a lost rank's place or a new one, instead of starting
    one."""
    alone_first: bool = False
    """With `join`: whether to compute alone, all other places empty, until `join_group`."""
    size_max: int | None = None
    """Size up to which the job may grow; None: its initial size."""
    witness: bool = True
    """Whether torch's store has the casting vote between two equal halves. It should not run in a
    rank."""
    address: str = ""
    """Address at which other ranks reach this one; detected if empty."""
    host: str = ""
    """Ranks with the same name use shared memory; detected if empty."""
    device_bytes: int = 0
    """Bytes of a GPU that collectives on CUDA tensors take; 0: as many as they need."""
    keep_inputs: bool = False
    """Whether calls in place on CUDA tensors copy their input first, and back if they fail. With it
    `on_failure` applies to calls on CUDA tensors, too, in groups of all ranks of the job."""
    _host_device: bool = field(default=False, repr=False)
    """Whether CPU tensors take the way of CUDA tensors; for tests of machines without GPUs."""
