"""The jobs of this process.

torch makes its groups one by one. The first starts a job: a Collectives with its threads and
connections. Later groups whose ranks all belong to a job become groups of that job, which is cheap.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from ..collectives import Collectives
from ..collectives.group import Group
from ..errors import invalid


class TorchCollectives(Collectives):
    """The Collectives of a torch job, whose groups are resized when it grows."""

    forget_devices: Callable[[], None] | None = None
    """Called after each change of the membership that this rank has asked for."""
    before_growth: Callable[[], None] | None = None
    after_growth: Callable[[], None] | None = None

    def grow(self, ranks: int, *, timeout: float | None = None) -> None:
        if self.before_growth is not None:
            self.before_growth()
        super().grow(ranks, timeout=timeout)
        if self.after_growth is not None:
            self.after_growth()
        self._changed()

    def shrink(self) -> list[int]:
        members = super().shrink()
        self._changed()
        return members

    def recover(
        self, *, wait_for_replacements: bool = False, timeout: float | None = None
    ) -> list[int]:
        members = super().recover(wait_for_replacements=wait_for_replacements, timeout=timeout)
        self._changed()
        return members

    def replace(self, rank: int, *, timeout: float | None = None) -> None:
        super().replace(rank, timeout=timeout)
        self._changed()

    def _changed(self) -> None:
        if self.forget_devices is not None:
            self.forget_devices()


class Job:
    """A Collectives and the torch groups in it; ends with the last of these."""

    def __init__(self, collectives: TorchCollectives, global_ranks: list[int]) -> None:
        self.collectives = collectives
        self.backend_states: weakref.WeakSet[Any] = weakref.WeakSet()
        """States of the torch groups in the job."""
        self._global_ranks = global_ranks
        collectives.before_growth = self._require_default_numbers
        collectives.after_growth = self.follow
        collectives.forget_devices = self.forget_devices
        self._groups = 0
        self._lock = threading.Lock()
        _jobs.append(self)

    def holds(self, global_ranks: list[int]) -> bool:
        return set(global_ranks) <= set(self._global_ranks)

    def has_ranks(self, global_ranks: list[int]) -> bool:
        """Returns whether these are the job's ranks, in its order."""
        return global_ranks == self._global_ranks

    def follow(self) -> None:
        """Adopts the ranks that have joined by growth, here and in torch's groups."""
        self._global_ranks = list(range(self.collectives.size))
        for backend_state in list(self.backend_states):
            backend_state.follow(self._global_ranks)

    def forget_devices(self) -> None:
        """Drops the collectives on device tensors of all groups."""
        for backend_state in list(self.backend_states):
            backend_state.forget_device()

    def _require_default_numbers(self) -> None:
        if self._global_ranks != list(range(len(self._global_ranks))):
            seen = f"a group of ranks {self._global_ranks}"
            raise invalid("group", "the job of a default group, for a job that grows", seen)

    def group(
        self, global_ranks: list[int], name: str, timeout: float, eager_limit: int | None = None
    ) -> Group:
        """Makes a group of the job, collective among its ranks; the first is the job's world."""
        with self._lock:
            self._groups += 1
            first = self._groups == 1
        try:
            if first:
                return self.collectives.world()
            ranks = [self._global_ranks.index(rank) for rank in global_ranks]
            return self.collectives.group(ranks, name, timeout=timeout, eager_limit=eager_limit)
        except BaseException:
            if self._is_last():
                self.abandon()
            raise

    def without_one_group(self) -> None:
        """Drops a group; leaves the job in good order if that was its last one."""
        if self._is_last() and self._forget():
            try:
                self.collectives.leave()  # Raises if a rank has not received one of our messages.
            finally:
                self.collectives.close()

    def abandon(self) -> None:
        """Ends the job at once; operations of all its groups fail with Cancelled."""
        if self._forget():
            self.collectives.close()

    def _is_last(self) -> bool:
        """Decrements the number of groups; returns whether none is left."""
        with self._lock:
            self._groups -= 1
            return self._groups == 0

    def _forget(self) -> bool:
        with self._lock:
            if self not in _jobs:
                return False
            _jobs.remove(self)
            return True


_jobs: list[Job] = []


def job_that_holds(global_ranks: list[int]) -> Job | None:
    return next((job for job in _jobs if job.holds(global_ranks)), None)


def abandon_all() -> None:
    for job in list(_jobs):
        job.abandon()
