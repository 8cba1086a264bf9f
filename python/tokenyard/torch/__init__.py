"""torch.distributed over Tokenyard's collectives, for CPU tensors and for CUDA tensors.

    import torch.distributed as dist
    import tokenyard.torch

    dist.init_process_group("tokenyard")

Importing this module registers the backend. The first import on a machine compiles it against the
installed torch, which needs a C++20 compiler and takes about half a minute, and caches it in
XDG_CACHE_HOME (default ~/.cache). When ranks are lost, operations raise tokenyard.OperationAborted,
or do as `Options.on_failure` says; `collectives` gives access to `recover`, `shrink`, `replace`
and `grow`.

The names of `tokenyard.moe` are exported here, too; imported from there they need no compiler.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ..collectives import Collectives
from ..errors import invalid
from ..moe import Dispatched, Exchange, MoE
from . import build
from .backend_state import create, job_of, state_with_job
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
    "check_device",
    "collectives",
    "evict",
    "failed_ranks",
    "go_on",
    "grow",
    "join_group",
    "monitored_barrier",
    "peer_states",
]


def collectives(group: dist.ProcessGroup | None = None) -> Collectives:
    """Returns the job of a group of backend `tokenyard`: its membership and counters.

    Ranks are those of the process's first such group, usually the default group.

    Args:
        group: a process group; the default group if None.

    Raises:
        InvalidArgument: the group is of another backend, or its job has ended.
    """
    return job_of(group).collectives


def check_device(group: dist.ProcessGroup | None = None) -> None:
    """Waits for the group's calls on CUDA tensors, and raises the error of one that failed.

    Calls on CUDA tensors are enqueued, so their failure is raised by a later call, by `Work.wait`
    once it is known, or here.

    Args:
        group: a process group; the default group if None.
    """
    state_with_job(group).await_device()


def go_on(group: dist.ProcessGroup | None = None) -> int:
    """Makes the ranks that go on after a failure agree on their calls on CUDA tensors. Collective.

    Call it after `recover`, `replace` or `shrink` of `collectives()`, on every rank of the group
    that has made such a call. From then on each `Work` that not all of them have finished raises on
    all of them, and each other one on none: continue after the last one that does not raise.
    Without it the next call on a CUDA tensor does the same.

    Args:
        group: a process group; the default group if None.

    Returns:
        The number of calls on CUDA tensors that all of them have finished.
    """
    return state_with_job(group).go_on_device()


def failed_ranks(work: dist.Work) -> list[int]:
    """Returns the ranks of the group that are missing from an operation's result, ascending.

    They were lost before the operation; their parts of gathered outputs are zeros. Empty while the
    operation is in progress, and if it failed: then the error names the lost ranks.

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
    """Blocks like a barrier; on a timeout, the error names every missing rank.

    torch's own function of this name accepts groups of backend gloo only.

    Args:
        group: a process group; the default group if None.
        timeout: the group's if None.
    """
    job_of(group)
    chosen: Any = group or dist.group.WORLD  # Of our backend, as job_of has checked.
    chosen.monitored_barrier(timeout or timedelta(seconds=-1e-3), wait_all_ranks=True)


if "tokenyard" not in dist.Backend.backend_list:
    dist.Backend.register_backend("tokenyard", create, extended_api=True, devices=["cpu", "cuda"])
build.load()
give_none_for_lost_ranks()


def __dir__() -> list[str]:
    """Lists the public names, so that completion does not offer internal modules."""
    return list(__all__)
