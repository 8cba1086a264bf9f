"""The state of one torch group: its job and core group. The C++ backend calls its methods.

attached -- shutdown, abort --> detached
  |  ^                             |
  |  +-------- reconfigure --------+
  +-- shrink --> another backend, attached to a job of its own
"""

from __future__ import annotations

import atexit
import secrets
import threading
import weakref
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

import _tokenyard

from ..collectives.group import Group
from ..errors import Cancelled, invalid
from ..sizes import size_of
from . import build
from .devices import GroupDevice
from .growth import follow_growth, move_backend
from .jobs import Job, abandon_all, job_that_holds
from .options import Options
from .rendezvous import join_rendezvous, stay_alone

_backend_states: weakref.WeakSet[BackendState] = weakref.WeakSet()


class BackendState:
    """Attaches a torch group to a job. All methods are safe to call from any thread."""

    def __init__(
        self,
        store: Any,
        name: str,
        rank: int,
        global_ranks: list[int],
        options: Options,
        timeout: float,
    ) -> None:
        self.rank = rank
        self.global_ranks = global_ranks
        self._store = store
        self._name = name
        self._options = options
        self._timeout = timeout
        self._lock = threading.Lock()
        self._job: Job | None = None
        self._group: Group | None = None
        self._founder = False
        self._alone = False
        self._handle = f"{rank:06}-{secrets.token_hex(8)}"
        self._configurations: set[int] = set()
        self._device_lock = threading.Lock()
        self._device: GroupDevice | None = None
        self._device_before: GroupDevice | None = None
        _backend_states.add(self)

    def enter(self) -> None:
        """Attaches the group to the job that holds its ranks, or to a new job."""
        job = job_that_holds(self.global_ranks)
        if job is None and self._options.join and self._options.alone_first:
            size = len(self.global_ranks)
            collectives = stay_alone(self.rank, size, self._options, self._timeout)
            self._attach(Job(collectives, self.global_ranks), founder=True)
            self._alone = True
        elif job is None:
            self._found("", self._timeout)
        else:
            self._attach(job, founder=False)

    def join(self) -> None:
        """Moves this group, and all groups of its job, from a job of one rank to the others' job.

        Raises:
            InvalidArgument: the group was not made with `alone_first`, or its job has ended.
        """
        if not self._alone:
            raise invalid("group", "a group made with Options(alone_first=True)", "another one")
        job, _ = self._detach()
        if job is None:
            raise invalid("group", "a group of a job that runs", "one whose job has ended")
        others = [
            backend_state for backend_state in job.backend_states if backend_state is not self
        ]
        for backend_state in others:
            backend_state._detach()
        job.abandon()
        self._alone = False
        self._found("", self._timeout)
        for backend_state in sorted(others, key=lambda backend_state: backend_state._name):
            backend_state._attach(self.job, founder=False)
        for backend_state in (self, *others):
            move_backend(backend_state)

    def follow(self, ranks: list[int]) -> None:
        """Adopts the ranks of a job that has grown; only the job's first group changes."""
        if self._founder and len(ranks) > len(self.global_ranks):
            self.global_ranks = ranks
            follow_growth(self)

    def backend(self) -> Any:
        """Returns torch's backend object for this group."""
        return build.load().make(
            functions=_tokenyard.core_table(),
            group=self._capsule(),
            rank=self.rank,
            size=len(self.global_ranks),
            timeout_s=self._timeout,
            name=self._name,
            global_ranks=self.global_ranks,
            backend_state=self,
            host_device=self._options._host_device,
        )

    def device_capsule(self, index: int | None) -> Any:
        """Returns the collectives on tensors of a GPU for C++; made by the first call. Collective.

        Args:
            index: the GPU's CUDA ordinal; None for the host, in tests.
        """
        with self._device_lock:
            return self._device_now(index).capsule

    def _device_now(self, index: int | None) -> GroupDevice:
        if self._device is None:
            job, device = self._new_device(index)
            with self._lock:
                attached = self._job is job
                if attached:
                    self._device, self._device_before = device, None
            if not attached:
                device.retire()
                raise Cancelled("tokenyard: the process group was aborted", phase="world")
            return device
        return self._device

    def _new_device(self, index: int | None) -> tuple[Job, GroupDevice]:
        with self._lock:
            job, group = self._job, self._group
        if job is None or group is None:
            raise invalid("group", "a group of a job that runs", "one whose job has ended")
        whole = self._founder and job.has_ranks(self.global_ranks)
        before = self._device_before
        return job, GroupDevice(job, group, whole, index, self._timeout, self._options, before)

    def forget_device(self) -> None:
        """Drops the collectives on device tensors; the next call on one makes them anew."""
        with self._device_lock:
            device, self._device = self._device, None
            if device is not None:
                self._device_before = device
        if device is not None:
            device.retire()

    def go_on_device(self) -> int:
        """Makes the collectives on device tensors anew after a failure. Collective.

        Returns:
            The number of calls that all ranks which have gone on have finished.
        """
        with self._device_lock:
            last = self._device or self._device_before
            if last is None:
                return 0
            return self._device_now(last.index).collectives.go_on()

    def await_device(self) -> None:
        """Waits for the calls on device tensors and raises the error of one that failed."""
        with self._device_lock:
            device = self._device
        if device is not None:
            device.wait()

    @property
    def job(self) -> Job:
        """The group's job; raises InvalidArgument if the group was shut down or aborted."""
        if self._job is None:
            raise invalid("group", "a group of a job that runs", "one whose job has ended")
        return self._job

    def state(self) -> str:
        with self._lock:
            group = self._group
        if group is None:
            return "ended"
        return "whole" if len(group.active_ranks()) == group.size else "ranks lost"

    def shutdown(self) -> None:
        job, _ = self._detach()  # Closes the group.
        if job is not None:
            job.without_one_group()

    def abort(self) -> None:
        """Aborts the group, and with the job's first group the whole job.

        That ends all waits in the job. Operations of any other group end at their deadlines, but
        its backend waits for them no more.
        """
        job, founder = self._detach(cancel=True)
        if job is not None and founder:
            job.abandon()
        elif job is not None:
            job.without_one_group()

    def shrink(self, excluded: list[int], abort: bool) -> Any:
        """Returns a backend for the remaining ranks, all of which call it.

        They form a new job, since excluded ranks may be dead, or run on for a while.
        """
        largest = len(self.global_ranks) - 1
        gone = {size_of("ranks_to_exclude", rank, largest=largest) for rank in excluded}
        left = [rank for rank in range(len(self.global_ranks)) if rank not in gone]
        if self.rank not in left:
            raise invalid("ranks_to_exclude", "other ranks than this one", repr(excluded))
        # torch renumbers the ranks of a default group; other groups keep global ranks.
        numbers = [self.global_ranks[rank] for rank in left]
        if state_of(dist.group.WORLD) is self:
            numbers = list(range(len(left)))
        if abort:
            self.abort()
        without = "-".join(map(str, sorted(gone)))
        name = f"{self._name}/without/{without}"
        backend_state = BackendState(
            self._store, name, left.index(self.rank), numbers, self._options, self._timeout
        )
        backend_state._found(f"without/{without}/", self._timeout)
        return backend_state.backend()

    def split(self, ranks: list[int], name: str, timeout: float) -> Any:
        """Returns the backend of a new group of `ranks` in the same job; all of them call it.

        `ranks` is this rank's group only; torch does not call ranks that are in no group.
        """
        largest = len(self.global_ranks) - 1
        numbers = [
            self.global_ranks[size_of("split_ranks", rank, largest=largest)] for rank in ranks
        ]
        backend_state = BackendState(
            self._store, name, ranks.index(self.rank), numbers, self._options, timeout
        )
        backend_state._attach(self.job, founder=False)
        return backend_state.backend()

    def handle(self) -> str:
        """Returns the name by which `reconfigure` of other ranks refers to this rank."""
        return self._handle

    def reconfigure(
        self, uuid: int, handles: list[str], ordered: bool, timeout: float | None
    ) -> tuple[Any, int, int]:
        """Leaves the job and forms a new one with the ranks that own `handles`.

        The old job's other groups end if this was its first group.

        Returns:
            The new core group, this rank's number, and the size.
        """
        ranks = handles if ordered else sorted(handles)
        if ranks.count(self._handle) != 1 or len(set(ranks)) != len(ranks):
            raise invalid("handles", f"{self._handle} and others, each once", ", ".join(ranks))
        if uuid in self._configurations:
            raise invalid("uuid", "one that was not used before", str(uuid))
        self._configurations.add(uuid)
        self.abort()
        self.rank, self.global_ranks = ranks.index(self._handle), list(range(len(ranks)))
        self._found(f"reconfigure/{uuid}/", timeout or self._timeout)
        return self._capsule(), self.rank, len(ranks)

    def _found(self, purpose: str, timeout: float) -> None:
        size = len(self.global_ranks)
        collectives = join_rendezvous(self._store, self.rank, size, self._options, timeout, purpose)
        if self._options.join and self.global_ranks == list(range(size)):
            # The job may have grown since it began.
            self.global_ranks = list(range(max(size, collectives.size)))
        self._options = replace(self._options, join=False)  # For the first job only.
        self._attach(Job(collectives, self.global_ranks), founder=True)

    def _attach(self, job: Job, founder: bool) -> None:
        group = job.group(self.global_ranks, self._name, self._timeout, self._options.eager_limit)
        with self._lock:
            self._job, self._group, self._founder = job, group, founder
        job.backend_states.add(self)

    def _detach(self, *, cancel: bool = False) -> tuple[Job | None, bool]:
        """Detaches the group and closes it; may be called again, since torch's users may.

        Args:
            cancel: whether calls on device tensors end at once.
        """
        # Not with the device lock: a thread that makes a device, and may wait for ranks that never
        # come, finds the group detached and drops what it has made.
        with self._lock:
            job, self._job = self._job, None
            group, self._group = self._group, None
            device, self._device, self._device_before = self._device, None, None
        if device is not None:
            if cancel:
                device.world.cancel()  # Ends its calls, for which `retire` waits.
            device.retire()
        if job is not None:
            job.backend_states.discard(self)
        if group is not None:
            group.close()
        return job, self._founder

    def _capsule(self) -> Any:
        return None if self._group is None else _tokenyard.group_capsule(self._group._native)


def create(described: Any, options: Options | None) -> Any:
    """Makes the backend of a torch group; registered by `register_backend`."""
    if options is not None and not isinstance(options, Options):
        raise invalid("pg_options", "tokenyard.torch.Options", type(options).__name__)
    backend_state = BackendState(
        described.store,
        described.group_id,
        described.group_rank,
        list(described.global_ranks_in_group) or list(range(described.group_size)),
        options or Options(),
        described.timeout.total_seconds(),
    )
    # Newer torch versions can create a group that joins no job until it is reconfigured.
    if not getattr(described, "enable_reconfigure", False):
        backend_state.enter()
    return backend_state.backend()


def state_of(group: dist.ProcessGroup | None) -> BackendState | None:
    """Returns the state of a group; None for a group of another backend."""
    return None if group is None else build.load().state_of(_backend_of(group))


def _backend_of(group: dist.ProcessGroup) -> Any:
    """Returns torch's backend for CPU tensors; where a group has none, that for CUDA tensors."""
    cpu = torch.device("cpu")
    return group._get_backend(cpu if cpu in group._device_types else torch.device("cuda"))


def job_of(group: dist.ProcessGroup | None) -> Job:
    """Returns a group's job; raises InvalidArgument for a group of another backend."""
    return state_with_job(group).job


def state_with_job(group: dist.ProcessGroup | None) -> BackendState:
    """Returns the state of `group`, or of the default group.

    Raises:
        InvalidArgument: there is no group, or it is of another backend.
    """
    chosen = group or dist.group.WORLD
    if chosen is None:
        raise invalid("group", "a process group", "none: init_process_group was not called")
    backend_state = state_of(chosen)
    if backend_state is None:
        backend = _backend_of(chosen).name()
        raise invalid("group", "a group of backend tokenyard", f"one of {backend}")
    return backend_state


@atexit.register
def _detach_all() -> None:
    """Detaches all groups and closes all jobs before the interpreter ends.

    torch keeps groups that the program has not destroyed, and with them their states, for longer.
    """
    for backend_state in list(_backend_states):
        backend_state._detach()
    abandon_all()
