"""Membership of a Mooncake process group: a group of a Tokenyard job, and its active ranks.

A group has numbered places. An active rank's place is taken; a lost or deactivated rank's place
stays empty until a new process, or the same one again, joins in it. Ranks keep their numbers, and
the group's size is one more than the highest active rank.
"""

from __future__ import annotations

import atexit
import json
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

import _tokenyard
from tokenyard.collectives.group import Group
from tokenyard.errors import Error, invalid
from tokenyard.sizes import size_of
from tokenyard.torch import build

from . import pg_job
from .pg_options import (
    MooncakeBackendOptions,
    ProposalStatus,
    ProposeViewUpdateResponse,
    SyncAfterFailureResponse,
    SyncAfterFailureStatus,
    unsupported,
)

CPU = torch.device("cpu")

_memberships: weakref.WeakSet[Membership] = weakref.WeakSet()


class _State:
    """The part of a membership that the C++ backend asks.

    Holds it weakly, since that holds the backend.

    See `backend_state.py` of tokenyard.torch.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = weakref.ref(membership)

    def state(self) -> str:
        membership = self._membership()
        if membership is None or membership.has_ended:
            return "ended"
        return "whole" if len(membership.active_slots()) == membership.places else "ranks lost"

    def shutdown(self) -> None:
        membership = self._membership()
        if membership is not None:
            membership.end()

    abort = shutdown

    def shrink(self, excluded: list[int], abort: bool) -> Any:
        raise unsupported("shrink_group", "lost ranks are excluded by themselves")

    def split(self, ranks: list[int], name: str, timeout: float) -> Any:
        raise unsupported("split_group", "call new_group")


class Membership:
    """One rank's place in a group, and what it knows of the others. Any thread may call."""

    def __init__(
        self,
        described: Any,
        options: MooncakeBackendOptions,
        owner: dist.ProcessGroup,
        *,
        begins_job: bool,
    ) -> None:
        """Attaches to the job that holds the group's ranks, to a new one, or to one of its own.

        Args:
            described: torch's description of the group.
            options: the group's options.
            owner: torch's group.
            begins_job: whether it is the default group, or the only one with this backend.
        """
        size = described.group_size
        self.places = options.max_group_size or size
        if self.places < size:
            raise invalid("max_group_size", f"{size} or more", str(self.places))
        self._owner, self._begins_job = weakref.ref(owner), begins_job
        self._slot: int = described.group_rank
        self._global_ranks = list(described.global_ranks_in_group) or list(range(size))
        self._store, self._group_id = described.store, described.group_id
        self._timeout: float = described.timeout.total_seconds()
        self._options = options
        self._lock = threading.RLock()
        self._active: set[int] = set()
        self._failures = 0
        self._epoch_offset = self._epoch_told = 0
        self.active_ranks = self._mirror(options.active_ranks)
        self._job: pg_job.Job | None = None
        self._core: Group | None = None
        self._is_first = False  # Whether the job's ranks are this group's.
        self.backend: Any = None
        self._enter()
        assert self._core is not None
        self.backend = build.load().make(
            functions=_tokenyard.core_table(),
            group=_tokenyard.group_capsule(self._core._native),
            rank=self._slot,
            size=len(self._global_ranks),
            timeout_s=self._timeout,
            name=self._group_id,
            global_ranks=self._global_ranks,
            backend_state=_State(self),
            host_device=False,
        )
        _memberships.add(self)

    def _mirror(self, given: torch.Tensor | None) -> torch.Tensor:
        if given is None:
            return torch.zeros(self.places, dtype=torch.int32)
        if given.numel() < self.places:
            raise invalid("active_ranks", f"{self.places} elements", str(given.numel()))
        if given.device != CPU:
            raise invalid("active_ranks", "a tensor of the CPU", str(given.device))
        given.zero_()
        return given

    # Attaching to a job.

    def _enter(self) -> None:
        job = pg_job.job_that_holds(self._global_ranks)
        # All groups that a process makes before it joins are alone, too, whatever their options.
        is_alone = job is None and pg_job.job_that_holds(self._global_ranks, alone=True)
        if self._options.is_extension or is_alone:
            self._be_alone()
        elif job is None:
            self._require_world_to_grow()
            job = pg_job.begin(
                self._store, self._slot, self._global_ranks, self.places, self._timeout, join=False
            )
            self._attach(job, job.collectives.world(), is_first=True)
        else:
            self._attach(job, job.core_group(self._global_ranks, self._core_name(), self._timeout))

    def _require_world_to_grow(self) -> None:
        of_world = self._global_ranks == list(range(len(self._global_ranks)))
        if self.places > len(self._global_ranks) and not of_world:
            raise unsupported(
                "max_group_size",
                f"a job of ranks {self._global_ranks} alone cannot grow: make the default group"
                " with this backend, too",
            )

    def _be_alone(self) -> None:
        job = pg_job.alone(self._global_ranks, self._slot, self._timeout)
        # The name need only differ from those of the job's other groups.
        name = f"alone/{self._group_id}/{self._epoch_offset}"
        self._attach(job, job.core_group(self._global_ranks, name, self._timeout))

    def _core_name(self) -> str:
        """A group of more ranks is another group of the job, so its name tells their number."""
        return f"{self._group_id}/{len(self._global_ranks)}"

    def _attach(self, job: pg_job.Job, core: Group, *, is_first: bool = False) -> None:
        """Moves to `job`; the previous job ends with its last group."""
        with self._lock:
            before, self._job = self._job, job
            old, self._core = self._core, core
            self._is_first = is_first
            self._epoch_offset = max(0, self._epoch_told + 1 - job.collectives.epoch())
            self._active = set()
            job.members.add(self)
        if old is not None:
            build.load().move_to(self.backend, _tokenyard.group_capsule(core._native))
            old.close()
        if before is not None and before is not job:
            before.drop(self, leaves=False)
        self.refresh()

    @property
    def has_ended(self) -> bool:
        return self._job is None

    @property
    def _running(self) -> pg_job.Job:
        if self._job is None:
            raise invalid("group", "a process group that runs", "one that was destroyed")
        return self._job

    def end(self, *, leaves: bool = False) -> None:
        """Leaves the group. With `leaves`, the end of a job waits until the others know."""
        with self._lock:
            job, self._job = self._job, None
            core, self._core = self._core, None
        if core is not None:
            core.close()
        if job is not None:
            job.drop(self, leaves=leaves)

    def refresh(self) -> None:
        """Adopts the job's current members. Any thread may call; does not wait for others."""
        with self._lock:
            job = self._job
            if job is None or self._core is None:
                return
            if self._is_first and job.is_numbered_as_the_world:
                self._follow(job.collectives.size)
            present = self._present(job)
            # Without automatic deactivation, only deactivate_ranks takes a rank out.
            kept = set() if self._options.auto_deactivate_on_failure else self._active
            self._active = present | kept
            mask = [int(slot in self._active) for slot in range(self.active_ranks.numel())]
            self.active_ranks.copy_(torch.tensor(mask, dtype=torch.int32))

    def _present(self, job: pg_job.Job) -> set[int]:
        active = job.active()
        return {
            slot for slot, rank in enumerate(self._global_ranks) if job.number_of(rank) in active
        }

    def _follow(self, size: int) -> None:
        """Adopts ranks that have joined beyond the group's end."""
        if size > len(self._global_ranks):
            self._adopt(list(range(size)))

    def _adopt(self, global_ranks: list[int]) -> None:
        self._global_ranks = global_ranks
        if self.backend is not None and hasattr(build.load(), "resize"):
            build.load().resize(self.backend, len(global_ranks))
        tables = dist.distributed_c10d._world.pg_group_ranks
        owner = self._owner()
        if owner in tables:
            tables[owner] = {rank: slot for slot, rank in enumerate(global_ranks)}

    def active_slots(self) -> set[int]:
        with self._lock:
            return set(self._active)

    def size(self) -> int:
        """Returns one more than the highest active rank; alone, the size that was declared."""
        with self._lock:
            if self._job is None or self._job.alone or not self._active:
                return len(self._global_ranks)
            return max(self._active) + 1

    @property
    def parts(self) -> int:
        """Number of parts that lists have in the job's group: one per place of a known rank."""
        assert self._core is not None
        return self._core.size

    def active_beyond(self, first: int) -> list[int]:
        """Returns the ranks from `first` that run, for other ranks to reach; none while alone."""
        job = self._running
        return [] if job.alone else sorted(s for s in self._present(job) if s >= first)

    def epoch(self) -> int:
        with self._lock:
            told = self._running.collectives.epoch() + self._epoch_offset
            self._epoch_told = max(self._epoch_told, told)
            return self._epoch_told

    def note_failure(self) -> None:
        with self._lock:
            self._failures += 1

    def peer_states(self, slots: Sequence[int]) -> list[bool]:
        """Returns for each rank whether it is active, or waits to be."""
        slots = self._checked(slots)
        self.refresh()
        job = self._running
        present = self._present(job)
        waiting = job.waiting()
        states = []
        for slot in slots:
            if slot < len(self._global_ranks):
                number = job.number_of(self._global_ranks[slot])
                states.append(slot in present or number in waiting)
            elif self._is_first:
                states.append(slot in waiting)
            else:
                states.append(self._extension_by(slot) is not None)
        return states

    def _checked(self, slots: Iterable[int]) -> list[int]:
        return [size_of("ranks", slot, largest=self.places - 1) for slot in slots]

    def activate(self, slots: Sequence[int]) -> ProposeViewUpdateResponse:
        """Admits processes that wait in these places; waits for them."""
        slots = self._checked(slots)
        try:
            beyond = [slot for slot in slots if slot >= len(self._global_ranks)]
            if beyond and not self._is_first:
                self._extend(beyond)
            end = time.monotonic() + self._timeout
            for slot in slots:
                self._admit(slot, end)
        except Error as error:
            return self._rejected(str(error))
        self.refresh()
        return ProposeViewUpdateResponse(ProposalStatus.Applied, self.epoch())

    def _admit(self, slot: int, end: float) -> None:
        job = self._running
        self.refresh()
        if slot in self._present(job):
            return
        number = slot if self._is_first else job.number_of(self._global_ranks[slot])
        assert number is not None  # A group's ranks have numbers in its job.
        job.admit(number, max(end - time.monotonic(), 0.001))

    def deactivate(self, slots: Sequence[int]) -> ProposeViewUpdateResponse:
        """Takes ranks out of the job: lost ones, another one that runs, or this one."""
        slots = self._checked(slots)
        job = self._running
        running = [slot for slot in slots if slot in self._present(job)]
        if running and not self._is_first:
            return self._rejected(
                f"ranks {running} run, and a rank leaves a whole job: deactivate them in the"
                " default group"
            )
        try:
            for slot in running:
                if slot != self._slot:
                    job.collectives.evict(slot, timeout=self._timeout)
        except Error as error:
            return self._rejected(str(error))
        if self._slot in running:
            job.leave()
            self._be_alone()
        else:
            with self._lock:
                self._active -= set(slots)
            self.refresh()
        return ProposeViewUpdateResponse(ProposalStatus.Applied, self.epoch())

    def _rejected(self, reason: str) -> ProposeViewUpdateResponse:
        return ProposeViewUpdateResponse(
            ProposalStatus.Rejected, self.epoch(), reject_reason=reason
        )

    def join(self) -> None:
        """Enters the others' job; waits until they activate this rank."""
        job = self._running
        if not job.alone and not job.has_ended:
            return
        others = pg_job.job_that_holds(self._global_ranks)
        if others is not None:
            self._offer()
            core = others.core_group(self._global_ranks, self._core_name(), self._timeout)
            self._attach(others, core)
        elif self._begins_job:
            others = pg_job.begin(
                self._store, self._slot, self._global_ranks, self.places, self._timeout, join=True
            )
            self._attach(others, others.collectives.world(), is_first=True)
        else:
            raise invalid("group", "one whose ranks have joined the default group", "another one")

    # A group that is not the first of its job grows by a message in torch's store: the process that
    # joins declares all ranks of the larger group, and its members make that group with it.

    def _offer(self) -> None:
        self._store.set(f"mooncake/join/{self._slot}", json.dumps(self._global_ranks))

    def _extension_by(self, slot: int) -> list[int] | None:
        """Returns the ranks that the process in `slot` declares; None if it does not wait."""
        key = f"mooncake/join/{slot}"
        if not self._store.check([key]):
            return None
        declared = json.loads(self._store.get(key))
        job = self._running
        numbers = job.numbers_of(declared)
        return declared if numbers is not None and set(numbers) <= job.active() else None

    def _extend(self, slots: list[int]) -> None:
        declared = [self._extension_by(slot) for slot in slots]
        if None in declared:
            raise invalid("ranks", "ranks that wait in join_group", str(slots))
        larger = max((ranks for ranks in declared if ranks is not None), key=len)
        known = self._global_ranks
        if larger[: len(known)] != known or set(slots) != set(range(len(known), len(larger))):
            seen = f"{slots}, which declare {larger} in a group of {known}"
            raise invalid("ranks", "all ranks that the joining processes add", seen)
        job = self._running
        name = f"{self._group_id}/{len(larger)}"
        core = job.core_group(larger, name, self._timeout)
        with self._lock:
            self._adopt(larger)
        self._attach(job, core)

    def synced_ranks(self) -> int:
        return sum(self.peer_states(range(self.places)))

    def sync_after_failure(self) -> SyncAfterFailureResponse:
        with self._lock:
            pending, self._failures = self._failures, 0
        try:
            self._running.collectives.recover(timeout=self._timeout)
        except Error as error:
            with self._lock:
                self._failures += pending
            return SyncAfterFailureResponse(SyncAfterFailureStatus.Rejected, str(error))
        self.refresh()
        status = SyncAfterFailureStatus
        return SyncAfterFailureResponse(status.Reconciled if pending else status.NoPending)


@atexit.register
def _end_all() -> None:
    """Closes all jobs before the interpreter ends, which their threads may call."""
    for membership in list(_memberships):
        membership.end()
