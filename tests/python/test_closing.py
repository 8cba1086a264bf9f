"""Everything that can be made and closed is made and closed many times, and leaves nothing behind.

Groups 1,000 times; slower objects some hundred times, which still reveals a page that leaks.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from holdings import cycle
from ranks import file_store, results_of, world_at
from test_collectives import connect

import tokenyard
from tokenyard import megakernel as mk
from tokenyard.world.rendezvous import HeldPort


def make_groups(say: Any, rank: int, size: int, store: str, cycles: int, apart: bool) -> None:
    host = {"host": f"host {rank}"} if apart else {}
    with connect(rank, size, store, **host) as job:
        kept: list[tokenyard.Work] = []

        def once(number: int) -> None:
            name = "of one name" if number % 2 == 0 else f"number {number}"
            group = job.group([2, 0, 1], name)
            array = np.ones(10, np.int64)
            group.all_reduce(array).wait()
            assert (array == size).all()
            if number % 10 == 0:
                group.send(array, (group.rank + 1) % size)
                group.receive(array, (group.rank + 2) % size).wait()
            if number % 3 == 0:
                with group:
                    kept[:] = [group.barrier()]  # Continues although its group is closed.
                kept[0].wait()
            elif number % 3 == 1:
                group.close()
                group.close()
                assert group.closed
                assert (group.rank, group.size, group.name) == ((rank + 1) % 3, size, name)
                with pytest.raises(tokenyard.InvalidArgument, match="closed"):
                    group.barrier()
            # Otherwise its last reference is dropped.

        cycle(once, cycles, lambda: time.sleep(0.3))


@pytest.mark.parametrize(("apart", "cycles"), [(False, 1000), (True, 100)])
def test_groups(tmp_path: Path, apart: bool, cycles: int) -> None:
    results_of(make_groups, 3, file_store(tmp_path), cycles, apart)


def close_in_turn(say: Any, rank: int, size: int, store: str) -> str:
    with connect(rank, size, store) as job:
        group = job.group([0, 1], "pair")
        group.barrier().wait()
        if rank == 0:
            group.close()
            job.world().barrier().wait()
        else:
            job.world().barrier().wait()
            with pytest.raises(tokenyard.InvalidArgument, match="close on rank 0"):
                group.barrier().wait()
            with pytest.raises(tokenyard.InvalidArgument, match="a name that no open group"):
                job.group([0, 1], "pair")
            group.close()
        again = job.group([0, 1], "pair")
        array = np.full(3, rank)
        again.all_reduce(array).wait()
        assert (array == 1).all()
        return repr(again)


def test_a_rank_that_uses_what_another_has_closed_is_told_so(tmp_path: Path) -> None:
    results_of(close_in_turn, 2, file_store(tmp_path))


def make_jobs(say: Any, rank: int, size: int, folder: Path) -> None:
    def once(number: int) -> None:
        with connect(0, 1, f"file:{folder}/{number % 7}-{time.monotonic_ns()}") as job:
            job.world().barrier().wait()
            if number % 2 == 0:
                job.group([0], "alone").barrier().wait()

    cycle(once, 400, lambda: None)


def test_jobs(tmp_path: Path) -> None:
    results_of(make_jobs, 1, tmp_path)


def make_worlds(say: Any, rank: int, size: int) -> None:
    cycle(lambda _: tokenyard.launch(lambda world: world.size, ranks=2), 500, lambda: None)


def test_worlds() -> None:
    results_of(make_worlds, 1)


def make_worlds_of_processes(say: Any, rank: int, size: int, port: int) -> None:
    def once(number: int) -> None:
        with world_at(port, rank, size, job=f"world {number}", arena_bytes=1 << 16) as world:
            assert world.size == size

    cycle(once, 300, lambda: None)


def test_worlds_of_processes() -> None:
    port = HeldPort()
    results_of(make_worlds_of_processes, 2, port.number)
    port.release()


def make_exchanges(say: Any, rank: int, size: int, low_latency: bool) -> None:
    x = np.ones((4, 64), ml_dtypes.bfloat16)
    topk_idx = np.array([[0, 1], [2, 3], [1, 2], [3, 0]])
    weights = np.full((4, 2), 0.5, np.float32)

    def run(world: tokenyard.World) -> None:
        def once(_: int) -> None:
            if low_latency:
                sizes = dict(experts=4, hidden=64, topk=2, tokens_max=8)
                exchange = tokenyard.LowLatency(world, **sizes)
                got = exchange.dispatch(x, topk_idx, rows="bf16")
                home = exchange.combine(got.x, got, weights)
                exchange.wait()
                assert (home.x == x).all()
                exchange.close()
            else:
                sizes = dict(experts=4, hidden=64, topk=2, tokens_max=8)
                with contextlib.closing(tokenyard.ExpertParallel(world, **sizes)) as exchange:
                    received = exchange.dispatch(x, topk_idx, weights)
                    exchange.combine(received.x, received.route)

        cycle(once, 200, lambda: None)

    tokenyard.launch(run, ranks=1)


@pytest.mark.parametrize("low_latency", [False, True])
def test_exchanges(low_latency: bool) -> None:
    results_of(make_exchanges, 1, low_latency)


def make_megakernels(say: Any, rank: int, size: int) -> None:
    def run(world: tokenyard.World) -> None:
        def once(_: int) -> None:
            memory = mk.TensorMemory(world)
            parts, total = memory.local(np.ones(8, np.float32)), memory.local(16)
            graph = mk.Graph(world)
            given = graph.tensor("parts", parts, parts.bytes, given=True)
            summed = graph.tensor("total", total, total.bytes)
            graph.task("reduce", reads=[given.all()], writes=[summed.all()], parts=parts,
                       residual=None, y=total, part_count=2, stride=4, count=4)  # fmt: skip
            graph.once()
            mk.Megakernel(world, graph, workers=2).run(1)

        cycle(once, 300, lambda: None)

    tokenyard.launch(run, ranks=1)


def test_megakernels() -> None:
    results_of(make_megakernels, 1)
