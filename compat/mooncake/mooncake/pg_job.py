"""The jobs of this process: the ranks whose membership its Mooncake groups share.

    group made, is_extension     a job of one rank, in which it computes alone
      |  join_group
      v
    the others' job              also: where the first group of a process begins it
      |  deactivate_ranks, on itself or by another rank
      v
    a job of one rank again      join_group leads back

The first group of a job is its default group: its ranks are the job's. Later groups whose ranks all
belong to the job become groups of it, which is cheap.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Any

from tokenyard.collectives import DEFAULT_SILENCE, Collectives
from tokenyard.collectives.group import Group
from tokenyard.errors import Error, invalid
from tokenyard.torch.options import Options
from tokenyard.torch.rendezvous import join_rendezvous, stay_alone

from .pg_options import settings

if TYPE_CHECKING:
    from .pg_membership import Membership


class Job:
    """A Collectives and the groups in it; ends with the last of these."""

    def __init__(
        self, collectives: Collectives, global_ranks: list[int], *, alone: bool = False
    ) -> None:
        self.collectives, self.alone = collectives, alone
        self._global_ranks = global_ranks
        self.members: weakref.WeakSet[Membership] = weakref.WeakSet()
        self._grown, self._has_left = collectives.size, False
        own = weakref.ref(self)

        def changed() -> None:
            job = own()
            for membership in list(job.members) if job else ():
                membership.refresh()

        self._listening: Any = collectives.on_change(changed)
        with _lock:
            _jobs.append(self)

    @property
    def is_numbered_as_the_world(self) -> bool:
        return self._global_ranks == list(range(len(self._global_ranks)))

    def number_of(self, global_rank: int) -> int | None:
        """Returns a rank's number in the job; None if it has none, perhaps not yet."""
        if self.is_numbered_as_the_world:
            return global_rank if global_rank < self.collectives.size else None
        known = self._global_ranks
        return known.index(global_rank) if global_rank in known else None

    def numbers_of(self, global_ranks: list[int]) -> list[int] | None:
        """Returns the numbers of ranks; None if one has none."""
        numbers = [self.number_of(rank) for rank in global_ranks]
        known = [number for number in numbers if number is not None]
        return known if len(known) == len(numbers) else None

    def active(self) -> set[int]:
        return set(self.collectives.active_ranks())

    def waiting(self) -> set[int]:
        return set(self.collectives.waiting_ranks())

    @property
    def has_ended(self) -> bool:
        """Whether this rank was deactivated, or the job was closed."""
        try:
            return self._has_left or not self.collectives.active_ranks()
        except Error:
            return True

    def admit(self, number: int, timeout: float) -> None:
        """Waits until a new process has taken a place that is empty or beyond the job's end.

        One member's call is enough. The members that did not call find the place taken.
        """
        if number < self.collectives.size:
            self.collectives.replace(number, timeout=timeout)
        # Each call counts one more place than the one before, filled or not.
        while number not in self.active() and self._grown <= number:
            self.collectives.grow(1, timeout=timeout)
            self._grown += 1

    def core_group(self, global_ranks: list[int], name: str, timeout: float) -> Group:
        """Makes a group of some of the job's ranks; all of them call it."""
        numbers = self.numbers_of(global_ranks)
        if numbers is None:
            seen = f"ranks {global_ranks} of a job of {self.collectives.size}"
            raise invalid("ranks", "ranks of the default group's job", seen)
        return self.collectives.group(numbers, name, timeout=timeout)

    def leave(self) -> None:
        """Leaves the job in good order; operations of its groups then raise Cancelled."""
        self._has_left = True
        # Raises if a rank has not received a message; this one has left all the same.
        with contextlib.suppress(Error):
            self.collectives.leave()

    def drop(self, membership: Membership, *, leaves: bool) -> None:
        """Drops a group; ends with the last one."""
        self.members.discard(membership)
        if not self.members:
            self.end(leaves=leaves and not self.alone)

    def end(self, *, leaves: bool) -> None:
        """Closes the job; with `leaves`, tells the others first."""
        with _lock:
            if self not in _jobs:
                return
            _jobs.remove(self)
        self._listening = None
        if leaves and not self.has_ended:
            self.leave()
        self.collectives.close()


_jobs: list[Job] = []
_lock = threading.Lock()


def job_that_holds(global_ranks: list[int], *, alone: bool = False) -> Job | None:
    """Returns the latest job that runs and holds all of these ranks; None if there is none.

    With `alone`, one in which only this rank is active; otherwise one of several processes.
    """
    with _lock:
        jobs = [job for job in reversed(_jobs) if job.alone == alone]
    return next(
        (job for job in jobs if not job.has_ended and job.numbers_of(global_ranks) is not None),
        None,
    )


def begin(
    store: Any, rank: int, global_ranks: list[int], places: int, timeout: float, *, join: bool
) -> Job:
    """Begins the job of a group's ranks, or joins it as the rank whose place is empty."""
    size = len(global_ranks)
    options = _options(max(places, size), join=join)
    collectives = join_rendezvous(store, rank, size, options, timeout, "mooncake/")
    return Job(collectives, global_ranks)


def alone(global_ranks: list[int], rank: int, timeout: float) -> Job:
    """Returns a job in which only this rank of a group is active."""
    known = job_that_holds(global_ranks, alone=True)
    if known is not None:
        return known
    size = max(global_ranks) + 1
    collectives = stay_alone(global_ranks[rank], size, _options(size), timeout)
    return Job(collectives, list(range(size)), alone=True)


def _options(places: int, *, join: bool = False) -> Options:
    return Options(
        on_failure="exclude",
        places="kept",
        eager_limit=0,  # As in Mooncake, a send ends once its receiver has the message.
        silence=DEFAULT_SILENCE if settings.silence_s is None else settings.silence_s,
        join=join,
        size_max=places,
        address=settings.address,
    )


def end_all() -> None:
    """Closes all jobs; the others then find this rank lost, not departed."""
    for job in list(_jobs):
        job.end(leaves=False)
