"""Expert-parallel dispatch and combine, and collectives that survive dead ranks.

    connect         starts or joins a job; also from_env and from_torch
    Job             one rank's membership of a job, on which worlds and collectives stand
    launch          runs a function on every rank of a new world, on threads or in processes
    World           one rank's end of a set of ranks that share an arena
    ExpertParallel  dispatch and combine for training and prefill
    LowLatency      dispatch and combine for decoding: few tokens, receive hooks, masked ranks
    Collectives     all_reduce and the like among ranks that may die, leave and join
    DeviceCollectives  the same on the tensors of a world's GPUs
    errors          typed exceptions with fields

Arrays are NumPy arrays (bfloat16 from ml_dtypes) or torch tensors. `python -m tokenyard doctor`
reports which fabrics work on this machine.
"""

import warnings
from typing import Any

from _tokenyard import CollectivesCounters, FailedRank, NetworkPath, PeerReach, PeerTimes, Topology
from _tokenyard import version as __version__

from . import at_exit as at_exit
from .collectives import Collectives, Group, StoreServer, Work
from .device_collectives import DeviceCollectives
from .errors import (
    Cancelled,
    Error,
    Fenced,
    InternalError,
    InvalidArgument,
    NetworkFault,
    OperationAborted,
    OsError,
    OutOfTouch,
    PeerLost,
    PeerTimeout,
    ProcessDied,
    QuorumLost,
    Unsupported,
)
from .expert_parallel import (
    Combined,
    DispatchMemory,
    ExpertParallel,
    ExpertRows,
    LowLatency,
    LowLatencyCombined,
    LowLatencyReceived,
    Received,
    RefusedBatch,
    Rings,
    Route,
    spread_lost_experts,
)
from .job import Job, connect, from_env, from_torch
from .metrics import prometheus_text
from .world import NetworkOptions, World, launch

__all__ = [
    "Cancelled",
    "Collectives",
    "CollectivesCounters",
    "Combined",
    "DeviceCollectives",
    "DispatchMemory",
    "Error",
    "ExpertParallel",
    "ExpertRows",
    "FailedRank",
    "Fenced",
    "Group",
    "InternalError",
    "InvalidArgument",
    "Job",
    "LowLatency",
    "LowLatencyCombined",
    "LowLatencyReceived",
    "NetworkFault",
    "NetworkOptions",
    "NetworkPath",
    "OperationAborted",
    "OsError",
    "OutOfTouch",
    "PeerLost",
    "PeerReach",
    "PeerTimeout",
    "PeerTimes",
    "ProcessDied",
    "QuorumLost",
    "Received",
    "RefusedBatch",
    "Rings",
    "Route",
    "StoreServer",
    "Topology",
    "Unsupported",
    "Work",
    "World",
    "__version__",
    "connect",
    "from_env",
    "from_torch",
    "launch",
    "prometheus_text",
    "spread_lost_experts",
]

_PUBLIC_MODULES = ("errors", "megakernel", "moe", "torch")


def __dir__() -> list[str]:
    """Lists the public names, so that completion does not offer internal modules."""
    return [*__all__, *(name for name in _PUBLIC_MODULES if name in globals())]


def __getattr__(name: str) -> Any:
    if name != "MaskedRank":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("MaskedRank is deprecated: use FailedRank", DeprecationWarning, stacklevel=2)
    return FailedRank
