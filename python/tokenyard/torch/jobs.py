"""The jobs of this process, and torch's groups in them.

torch makes its groups one by one, each with ranks of its own and a store. The first becomes a job:
one Collectives with its threads and connections. Groups whose ranks all belong to a job are groups
of that job, and cost next to nothing.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import _tokenyard

from ..collectives import Collectives
from ..errors import invalid
from ..group import Group
from . import build
from .options import Options


class Job:
    """A Collectives and torch's groups in it; it ends with the last of them."""

    def __init__(self, collectives: Collectives, global_ranks: list[int]) -> None:
        self.collectives = collectives
        self._global_ranks = global_ranks
        self._names: Counter[str] = Counter()
        self._groups = 0
        self._lock = threading.Lock()

    def holds(self, global_ranks: list[int]) -> bool:
        return set(global_ranks) <= set(self._global_ranks)

    def group(self, global_ranks: list[int], name: str, timeout: float) -> Group:
        """A group of the job, collective among its ranks; the first is the job's world."""
        with self._lock:
            self._groups += 1
            first = self._groups == 1
            # torch uses a name again once its group is destroyed, on all ranks alike.
            self._names[name] += 1
            use = self._names[name]
        if first:
            return self.collectives.world()
        ranks = [self._global_ranks.index(rank) for rank in global_ranks]
        return self.collectives.group(ranks, f"{name}/{use}", timeout=timeout)

    def without_one_group(self) -> None:
        """Ends the job in good order if that was its last one."""
        with self._lock:
            self._groups -= 1
            last = self._groups == 0
        if last:
            _jobs.remove(self)
            for name in [name for name, job in _job_of_group.items() if job is self]:
                del _job_of_group[name]
            self.collectives.leave()
            self.collectives.close()


_jobs: list[Job] = []
_job_of_group: dict[str, Job] = {}
"""By torch's name of the group; torch may use one again for another group."""


def create(described: Any, options: Options | None) -> Any:
    """Makes the backend of one group of torch's: what `register_backend` registers."""
    if options is not None and not isinstance(options, Options):
        raise invalid("pg_options", "tokenyard.torch.Options", type(options).__name__)
    timeout = described.timeout.total_seconds()
    size = described.group_size
    ranks = list(described.global_ranks_in_group) or list(range(size))
    job = next((job for job in _jobs if job.holds(ranks)), None)
    if job is None:
        job = Job(_meet(described, options or Options(), timeout), ranks)
        _jobs.append(job)
    group = job.group(ranks, described.group_id, timeout)
    _job_of_group[described.group_id] = job
    return build.load().make(
        functions=_tokenyard.core_table(),
        group=_tokenyard.group_capsule(group._native),
        rank=described.group_rank,
        size=size,
        timeout_s=timeout,
        name=described.group_id,
        global_ranks=ranks,
        on_shutdown=_once(job.without_one_group),
        on_abort=job.collectives.cancel,
    )


def _meet(described: Any, options: Options, timeout: float) -> Collectives:
    """Through the group's own store, which tells the job's name and secret too."""
    store, rank = described.store, described.group_rank
    if options.join:
        meeting = int(store.get("tokenyard/meetings"))
    else:
        # A group that is made anew in the same store is another job.
        meeting = store.add(f"tokenyard/meetings/{rank}", 1)
        if rank == 0:
            store.set(f"tokenyard/secret/{meeting}", secrets.token_hex(16))
            store.set("tokenyard/meetings", str(meeting))
    secret = store.get(f"tokenyard/secret/{meeting}").decode()
    begin = Collectives.join if options.join else Collectives.connect
    return begin(
        "",
        own_store=build.load().lend_store(store),
        secret=secret,
        rank=rank,
        size=described.group_size,
        job=f"torch/{meeting}",
        size_max=options.size_max,
        timeout=timeout,
        silence=options.silence,
        on_failure=options.on_failure,
        witness=options.witness,
        address=options.address,
        host=options.host,
    )


def job_of(group: dist.ProcessGroup | None) -> Job:
    """Raises InvalidArgument for a group of another backend."""
    chosen = group or dist.group.WORLD
    if chosen is None:
        raise invalid("group", "a process group", "none: init_process_group was not called")
    backend = chosen._get_backend(torch.device("cpu")).name()
    if backend != "tokenyard":
        raise invalid("group", "a group of backend tokenyard", f"one of {backend}")
    if chosen.group_name not in _job_of_group:
        raise invalid("group", "a group of a job that runs", "one whose job has ended")
    return _job_of_group[chosen.group_name]


def _once(call: Callable[[], None]) -> Callable[[], None]:
    """torch shuts a group down as often as its user says so."""
    calls = [call]

    def only_once() -> None:
        if calls:
            calls.pop()()

    return only_once
