"""Jobs of torch's that change while they run: who is there, who comes, who goes."""

from __future__ import annotations

from typing import Literal

import torch.distributed as dist

from .backend_state import job_of, state_with_job

PeerState = Literal["active", "waiting", "absent"]


def peer_states(group: dist.ProcessGroup | None = None) -> dict[int, PeerState]:
    """What this rank knows of every rank of the job, without asking anybody.

    "active": takes part. "waiting": a new process for it would like to be let in, by `recover`,
    `replace` or `grow`. "absent": neither. Ranks that the job may grow by are here as soon as they
    wait.

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
    """Waits until so many more ranks have come; returns the default group with them in it.

    Every member calls it, or `collectives().grow`, which does the same. Where torch fixes the size
    of a group (2.15 does not), the group returned is a new one, and the one before says so.
    """
    job_of(group).collectives.grow(ranks, timeout=timeout)
    grown = dist.group.WORLD
    assert grown is not None
    return grown


def evict(
    rank: int, *, timeout: float | None = None, group: dist.ProcessGroup | None = None
) -> None:
    """Puts a living rank out, by its number; the group keeps its size and everybody's number.

    See `Collectives.evict`.
    """
    job_of(group).collectives.evict(rank, timeout=timeout)


def join_group(group: dist.ProcessGroup | None = None) -> None:
    """Ends the time in which this rank computes alone (`Options.alone_first`).

    Waits until the members let it in. All groups that were made meanwhile come along; their ranks
    are those of the job.
    """
    state_with_job(group).join()
