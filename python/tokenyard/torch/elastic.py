"""Membership of a torch job at run time: ranks that are active, that join, that are evicted."""

from __future__ import annotations

from typing import Literal

import torch.distributed as dist

from .backend_state import job_of, state_with_job

PeerState = Literal["active", "waiting", "absent"]


def peer_states(group: dist.ProcessGroup | None = None) -> dict[int, PeerState]:
    """Returns the state of each rank of the job as this rank knows it, without communication.

    "active": takes part. "waiting": a new process asks to be admitted in its place, by `recover`,
    `replace` or `grow`. "absent": neither. Ranks beyond the job's size are listed once they wait.

    >>> while tokenyard.torch.peer_states().get(2) != "waiting":
    ...     serve()
    """
    job = job_of(group).collectives
    active, waiting = set(job.active_ranks()), set(job.waiting_ranks())
    ranks = max([job.size - 1, *waiting]) + 1
    return {
        rank: "active" if rank in active else "waiting" if rank in waiting else "absent"
        for rank in range(ranks)
    }


def grow(
    ranks: int, *, timeout: float | None = None, group: dist.ProcessGroup | None = None
) -> dist.ProcessGroup:
    """Waits until `ranks` more ranks have joined; returns the default group that includes them.

    Every member calls it, or `collectives().grow`, which does the same. torch before 2.15 fixes a
    group's size; there the result is a new group, and the old one raises errors that say so.

    Args:
        ranks: number of additional ranks.
        timeout: seconds; the job's if None.
        group: a group of the job; the default group if None.

    Raises:
        PeerTimeout: too few ranks joined in time.
    """
    job_of(group).collectives.grow(ranks, timeout=timeout)
    grown = dist.group.WORLD
    assert grown is not None
    return grown


def evict(
    rank: int, *, timeout: float | None = None, group: dist.ProcessGroup | None = None
) -> None:
    """Evicts a running rank; the group keeps its size and its numbering.

    See `Collectives.evict`.
    """
    job_of(group).collectives.evict(rank, timeout=timeout)


def join_group(group: dist.ProcessGroup | None = None) -> None:
    """Joins the running job after a start with `Options.alone_first`.

    Waits until the members admit this rank. Groups made meanwhile move to the job, too; their
    ranks are those of the job.
    """
    state_with_job(group).join()
