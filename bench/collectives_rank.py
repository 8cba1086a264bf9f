"""Runs one rank of bench/collectives.py: checks, then times each contender's operations in turn."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import tokenyard.torch

BLOCK_S = 0.03
CALLS_MOST = 2000


@dataclass(frozen=True)
class Place:
    """This rank's number, and how it reaches the others."""

    rank: int
    size: int
    store: str
    """"host:port" of torch's store."""
    core: int
    address: str
    host: str
    """Host name; ranks with the same name use shared memory."""
    cells: list[tuple[str, int]]
    """Operations, each with the bytes of a rank's larger buffer."""
    blocks: int


Call = Callable[[], Any]


class Operations:
    """An operation's buffers of a given size, and each contender's call on them.

    The size is that of a rank's larger buffer: all that is reduced, gathered or sent.
    """

    def __init__(
        self, size: int, rank: int, groups: dict[str, Any], native: tokenyard.Group
    ) -> None:
        self._size, self._rank, self._groups, self._native = size, rank, groups, native

    def calls(self, operation: str, length: int) -> dict[str, Call]:
        """Returns each contender's call, all on the same buffers: `length` bytes of float32.

        "copy" is a yardstick: every rank copies its larger buffer, and nobody waits for anybody.
        """
        elements = max(length // 4, self._size)
        part = elements // self._size
        self.whole = torch.zeros(part * self._size)
        self.part = torch.zeros(part)
        self.other = torch.zeros(part * self._size)
        by_torch: dict[str, Callable[[Any], Any]] = dict(
            all_reduce=lambda group: dist.all_reduce(self.whole, group=group),
            reduce_scatter=lambda group: dist.reduce_scatter_tensor(
                self.part, self.whole, group=group
            ),
            all_gather=lambda group: dist.all_gather_into_tensor(
                self.whole, self.part, group=group
            ),
            broadcast=lambda group: dist.broadcast(self.whole, 0, group=group),
            all_to_all=lambda group: dist.all_to_all_single(self.other, self.whole, group=group),
            barrier=lambda group: dist.barrier(group=group),
        )
        call = by_torch[operation]
        calls: dict[str, Call] = {
            name: lambda group=group: call(group) for name, group in self._groups.items()
        }
        calls["numpy"] = self._by_numpy(operation)
        whole, other = self.whole.numpy(), self.other.numpy()
        calls["copy"] = lambda: np.copyto(other, whole)
        return calls

    def _by_numpy(self, operation: str) -> Call:
        world = self._native
        whole, part, other = (tensor.numpy() for tensor in (self.whole, self.part, self.other))
        rows, others = whole.reshape(self._size, -1), other.reshape(self._size, -1)
        return dict[str, Call](
            all_reduce=lambda: world.all_reduce(whole).wait(),
            reduce_scatter=lambda: world.reduce_scatter(rows, part).wait(),
            all_gather=lambda: world.all_gather(part, rows).wait(),
            broadcast=lambda: world.broadcast(whole, root=0).wait(),
            all_to_all=lambda: world.all_to_all(rows, others).wait(),
            barrier=lambda: world.barrier().wait(),
        )[operation]

    def check(self, operation: str, name: str, call: Call) -> None:
        """Checks a call's result on random data that every rank can generate."""
        rows = self.whole.shape[0]
        given = [
            torch.randn(rows, generator=torch.Generator().manual_seed(rank))
            for rank in range(self._size)
        ]
        part = rows // self._size
        mine = slice(self._rank * part, (self._rank + 1) * part)
        self.whole.copy_(given[self._rank])
        self.part.copy_(given[self._rank][:part])
        call()
        seen, wanted = {
            "all_reduce": lambda: (self.whole, sum(given)),
            "reduce_scatter": lambda: (self.part, sum(given)[mine]),
            "all_gather": lambda: (self.whole, torch.cat([one[:part] for one in given])),
            "broadcast": lambda: (self.whole, given[0]),
            "all_to_all": lambda: (self.other, torch.cat([one[mine] for one in given])),
            "barrier": lambda: (self.part, self.part),
        }[operation]()
        if not torch.allclose(seen, wanted, rtol=1e-5, atol=1e-5):
            raise AssertionError(f"{operation} by {name} of {4 * rows} bytes is wrong")
        for buffer in (self.whole, self.part, self.other):
            buffer.zero_()  # Repeated sums of zeros stay zero.


def measure(place: Place, calls: dict[str, Call]) -> dict[str, list[float]]:
    """Returns us per call, by block. Contenders take turns, so noise affects all alike."""
    counts = {name: agreed_count(call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(place.blocks):
        for name, call in calls.items():
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(counts[name]):
                call()
            slowest = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            times[name].append(slowest.item() / counts[name] * 1e6)
    return times


def agreed_count(call: Call) -> int:
    """Returns the number of calls after which a block is long enough to be timed."""
    call()
    begin = time.perf_counter()
    for _ in range(3):
        call()
    count = torch.tensor(3 * BLOCK_S / (time.perf_counter() - begin))
    dist.broadcast(count, 0)
    return int(min(max(count.item(), 1), CALLS_MOST))


def main() -> None:
    place = Place(**json.loads(sys.argv[1]))
    os.sched_setaffinity(0, {place.core})
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{place.store}",
        rank=place.rank,
        world_size=place.size,
        timeout=timedelta(seconds=120),
    )
    options = tokenyard.torch.Options(address=place.address, host=place.host)
    ours = dist.new_group(backend="tokenyard", pg_options=options)
    job = tokenyard.torch.collectives(ours)
    operations = Operations(place.size, place.rank, dict(ours=ours, gloo=None), job.world())
    for operation, length in place.cells:
        calls = operations.calls(operation, length)
        for name, call in calls.items():
            if name != "copy":
                operations.check(operation, name, call)
        times = measure(place, calls)
        row = dict(case=operation, bytes=length, choice=job.world().choice(operation, length))
        row |= {name: spread(block) for name, block in times.items()}
        if place.rank == 0:
            print(json.dumps(row), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def spread(times: list[float]) -> dict[str, float]:
    return dict(median=float(np.median(times)), min=min(times), max=max(times))


if __name__ == "__main__":
    main()
