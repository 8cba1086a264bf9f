"""torch.distributed over Tokenyard's collectives, for CPU tensors.

    import torch.distributed as dist
    import tokenyard.torch

    dist.init_process_group("tokenyard")

Importing this registers the backend. At its first use on a machine it is compiled against the torch
that is installed, which takes a C++20 compiler and about half a minute, and is kept in
XDG_CACHE_HOME (else ~/.cache). When ranks are lost, operations raise tokenyard.OperationAborted, or
do as `Options.on_failure` says; `collectives` is the way to `recover`, `shrink`, `replace` and
`grow`.

The layers of `tokenyard.moe` are here too; imported from there they need no compiler.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ..collectives import Collectives
from ..errors import invalid
from ..moe import Dispatched, Exchange, MoE
from . import build
from .backend_state import create, job_of
from .elastic import PeerState, evict, grow, join_group, peer_states
from .objects import give_none_for_lost_ranks
from .options import Options
from .training import average_hook

__all__ = [
    "Dispatched",
    "Exchange",
    "MoE",
    "Options",
    "PeerState",
    "average_hook",
    "collectives",
    "evict",
    "failed_ranks",
    "grow",
    "join_group",
    "monitored_barrier",
    "peer_states",
]


def collectives(group: dist.ProcessGroup | None = None) -> Collectives:
    """The job that a group of backend `tokenyard` belongs to: its membership, its counters.

    Ranks are those of the process's first such group, usually the default group.
    """
    return job_of(group).collectives


def failed_ranks(work: dist.Work) -> list[int]:
    """Returns the ranks of its group that are missing from what an operation has done, ascending.

    They were lost before; their places in gathered outputs hold zeros. Empty while the operation is
    under way, and if it failed: then the error names them.

    >>> work = dist.all_gather(outputs, tensor, async_op=True)
    >>> work.wait()
    >>> tokenyard.torch.failed_ranks(work)
    [1]
    """
    ranks = build.load().failed_ranks(work)
    if ranks is None:
        raise invalid("work", "an operation of backend tokenyard", repr(work))
    return sorted(ranks)


def monitored_barrier(
    group: dist.ProcessGroup | None = None, timeout: timedelta | None = None
) -> None:
    """A barrier whose error names every rank that did not come.

    torch's own function of this name takes groups of backend gloo only.
    """
    job_of(group)
    chosen: Any = group or dist.group.WORLD  # Which job_of has found to be ours.
    chosen.monitored_barrier(timeout or timedelta(seconds=-1e-3), wait_all_ranks=True)


if "tokenyard" not in dist.Backend.backend_list:
    dist.Backend.register_backend("tokenyard", create, extended_api=True, devices=["cpu"])
build.load()
give_none_for_lost_ranks()


def __dir__() -> list[str]:
    """Lists what callers use, so that completion does not offer the modules that hold it."""
    return list(__all__)
