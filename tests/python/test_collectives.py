"""Every operation, for every type, size and number of ranks, against NumPy."""

from __future__ import annotations

import gc
import math
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collectives_reference import DTYPES, OPS, allowed, given, reduced, same_bits
from ranks import file_store, results_of

import tokenyard

SIZES = (0, 1, 7, 4099, 70_001)
LARGEST = 300_007
LARGEST_DTYPES = ("float32", "bfloat16", "int64")
PART_MOST = 10_007
"""Largest part of a reduce_scatter: its input has as much for every rank."""


def connect(rank: int, size: int, store: str, **options: Any) -> tokenyard.Collectives:
    given = dict(secret="of the tests", rank=rank, size=size, timeout=60) | options
    return tokenyard.Collectives.connect(store, **given)


def cases() -> list[tuple[np.dtype, int]]:
    every = [(dtype, length) for dtype in DTYPES for length in SIZES]
    return every + [(dtype, LARGEST) for dtype in DTYPES if dtype.name in LARGEST_DTYPES]


def check(seen: np.ndarray, wanted: np.ndarray, *what: object) -> None:
    if not same_bits(seen, wanted):
        wrong = np.flatnonzero(seen.reshape(-1) != wanted.reshape(-1))
        first = int(wrong[0]) if len(wrong) else -1
        raise AssertionError(
            f"{what}: {len(wrong)} differ, first [{first}]: "
            f"{seen.reshape(-1)[first]} instead of {wanted.reshape(-1)[first]}"
        )


def reductions(world: tokenyard.Group, dtype: np.dtype, length: int) -> None:
    ranks = range(world.size)
    for op in OPS:
        if not allowed(op, dtype):
            continue
        everybodys = [given(dtype, op, rank, (length,)) for rank in ranks]
        wanted = reduced(op, everybodys)

        mine = everybodys[world.rank].copy()
        world.all_reduce(mine, op).wait()
        check(mine, wanted, "all_reduce", op, dtype, length)

        root = length % world.size
        mine = everybodys[world.rank].copy()
        world.reduce(mine, op, root=root).wait()
        kept = wanted if world.rank == root else everybodys[world.rank]
        check(mine, kept, "reduce", op, dtype, length)

        each = min(length, PART_MOST)
        parts = [given(dtype, op, rank, (world.size, each), salt=1) for rank in ranks]
        out = np.empty(each, dtype)
        world.reduce_scatter(parts[world.rank], out, op).wait()
        wanted = reduced(op, [part[world.rank] for part in parts])
        check(out, wanted, "reduce_scatter", op, dtype, each)


def moves(world: tokenyard.Group, dtype: np.dtype, length: int) -> None:
    me, ranks = world.rank, range(world.size)
    everybodys = [given(dtype, "sum", rank, (length,), salt=2) for rank in ranks]
    root = (length + 1) % world.size

    mine = everybodys[me].copy()
    world.broadcast(mine, root=root).wait()
    check(mine, everybodys[root], "broadcast", dtype, length)

    out = np.empty((world.size, length), dtype)
    world.all_gather(everybodys[me], out).wait()
    check(out, np.stack(everybodys), "all_gather", dtype, length)

    gathered = np.empty((world.size, length), dtype) if me == root else None
    world.gather(everybodys[me], gathered, root=root).wait()
    if gathered is not None:
        check(gathered, np.stack(everybodys), "gather", dtype, length)

    mine = np.empty(length, dtype)
    world.scatter(mine, everybodys if me == root else None, root=root).wait()
    check(mine, everybodys[me], "scatter", dtype, length)

    # Uneven: rank r has r elements more, and sends s elements fewer to rank s.
    lengths = [length + rank for rank in ranks]
    uneven = [np.empty(count, dtype) for count in lengths]
    world.all_gather(given(dtype, "sum", me, (lengths[me],), salt=3), uneven).wait()
    for rank, seen in enumerate(uneven):
        check(seen, given(dtype, "sum", rank, (lengths[rank],), salt=3), "uneven", dtype, length)

    def part(source: int, target: int) -> np.ndarray:
        count = max(0, length + source - target)
        return given(dtype, "sum", source, (count,), salt=100 + target)

    received = [np.empty(len(part(source, me)), dtype) for source in ranks]
    world.all_to_all([part(me, target) for target in ranks], received).wait()
    for source in ranks:
        check(received[source], part(source, me), "all_to_all", dtype, length)

    if world.size == 1:
        return  # No rank sends to itself.
    to, source = (me + 1) % world.size, (me - 1) % world.size
    got = np.empty(length, dtype)
    sent = world.send(everybodys[me], to, tag=length)
    world.receive(got, source, tag=length).wait()
    sent.wait()
    check(got, everybodys[source], "receive", dtype, length)


def everything(say: Any, rank: int, size: int, store: str) -> int:
    with connect(rank, size, store) as job:
        world = job.world()
        for dtype, length in cases():
            reductions(world, dtype, length)
            moves(world, dtype, length)
        world.barrier().wait()
        return job.counters().committed


@pytest.mark.parametrize("size", range(1, 7))
def test_every_operation_is_what_numpy_says(tmp_path: Path, size: int) -> None:
    committed = results_of(everything, size, file_store(tmp_path))
    assert all(count > 1000 for count in committed)


def every_algorithm(say: Any, rank: int, size: int, store: str) -> set[str]:
    """All ranks get the same bits, for every algorithm and all values."""
    seen = set()
    with connect(rank, size, store) as job:
        world = job.world()
        rng = np.random.default_rng(rank)
        for algorithm in ("automatic", "doubling", "halving_doubling", "ring", "tree", "direct"):
            for length in (1, 1003, 70_001):
                mine = rng.standard_normal(length).astype(np.float32)
                everybodys = np.empty((size, length), np.float32)
                world.all_gather(mine, everybodys).wait()
                try:
                    work = world.all_reduce(mine, algorithm=algorithm)
                    work.wait()
                except tokenyard.InvalidArgument:
                    continue  # Not every operation has every algorithm.
                np.testing.assert_allclose(mine, everybodys.sum(0), rtol=1e-4, atol=1e-4)
                world.all_gather(mine, everybodys).wait()
                assert all(same_bits(row, everybodys[0]) for row in everybodys)
                seen.add(work.choice().split(":")[0].split()[0])
                assert world.choice("all_reduce", mine.nbytes)
    return seen


@pytest.mark.parametrize("size", [2, 3, 4])
def test_algorithms_can_be_chosen(tmp_path: Path, size: int) -> None:
    for seen in results_of(every_algorithm, size, file_store(tmp_path)):
        assert len(seen) >= 2, seen


def lists_and_types(say: Any, rank: int, size: int, store: str) -> None:
    with connect(rank, size, store) as job:
        world = job.world()
        mixed = [
            np.full((2, 3), rank + 1, np.float16),
            np.full(5, rank + 1, np.int64),
            np.empty(0, np.float32),
            np.array(rank + 1, np.complex64),
        ]
        world.all_reduce(mixed).wait()
        total = size * (size + 1) // 2
        assert all((array == total).all() for array in mixed)
        # A contiguous view is accepted like an array.
        whole = np.zeros((4, 3), np.float32)
        world.all_reduce(whole[1:3]).wait()
        world.broadcast(np.asfortranarray(np.ones((1, 3))), root=0).wait()


def test_lists_shapes_and_views(tmp_path: Path) -> None:
    results_of(lists_and_types, 3, file_store(tmp_path))


def messages(say: Any, rank: int, size: int, store: str) -> list[int]:
    with connect(rank, size, store) as job:
        world = job.world()
        if rank > 0:
            # In another order than they are received in.
            for tag in (2, 1):
                world.send(np.full(3, 10 * rank + tag, np.int32), 0, tag=tag).wait()
            world.send(np.empty(0, np.int32), 0, tag=9).wait()
            world.barrier().wait()
            return []
        got = np.zeros(3, np.int32)
        for source in range(1, size):
            for tag in (1, 2):
                work = world.receive(got, source, tag=tag)
                work.wait()
                assert (got == 10 * source + tag).all()
                assert work.source() == source
        sources = []
        for _ in range(1, size):
            work = world.receive(np.empty(0, np.int32), None, tag=9)
            work.wait()
            sources.append(work.source())
        world.barrier().wait()
        return sorted(sources)


def test_messages_have_tags_and_may_come_from_anybody(tmp_path: Path) -> None:
    assert results_of(messages, 4, file_store(tmp_path))[0] == [1, 2, 3]


def patience(say: Any, rank: int, size: int, store: str) -> None:
    with connect(rank, size, store) as job:
        world = job.world()
        box = np.zeros(1, np.int32)
        for seconds in (math.inf, 1e10, 1e300):
            if rank == 0:
                work = world.receive(box, 1)
                assert not work.wait_for(-seconds)
                assert not work.wait_for(0)
                world.barrier().wait()
                assert work.wait_for(seconds)
            else:
                world.barrier().wait()
                time.sleep(0.2)
                world.send(box, 0).wait()


def test_a_wait_may_have_all_the_time_there_is(tmp_path: Path) -> None:
    results_of(patience, 2, file_store(tmp_path))


def groups_and_threads(say: Any, rank: int, size: int, store: str) -> None:
    """Groups are independent, whichever thread calls first."""
    with connect(rank, size, store) as job:
        pairs = {
            (low, high): job.group([high, low], f"{low} and {high}")
            for low in range(size)
            for high in range(low + 1, size)
            if rank in (low, high)
        }
        for (low, _high), group in pairs.items():
            assert group.size == 2
            assert group.rank == (1 if rank == low else 0)
        errors: list[BaseException] = []

        def work_in(group: tokenyard.Group, pair: tuple[int, int]) -> None:
            try:
                for length in range(200):
                    mine = np.full(length, rank, np.int64)
                    group.all_reduce(mine).wait()
                    assert (mine == sum(pair)).all()
            except BaseException as error:
                errors.append(error)

        order = sorted(pairs, reverse=rank % 2 == 0)
        threads = [threading.Thread(target=work_in, args=(pairs[pair], pair)) for pair in order]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        # Many of one group at once, waited for in another order.
        arrays = [np.full(100, index, np.int64) for index in range(20)]
        works = [job.world().all_reduce(array) for array in arrays]
        for work in reversed(works):
            work.wait()
        assert all((array == size * index).all() for index, array in enumerate(arrays))


def test_groups_run_side_by_side(tmp_path: Path) -> None:
    results_of(groups_and_threads, 4, file_store(tmp_path))


def dropped_work(say: Any, rank: int, size: int, store: str) -> None:
    with connect(rank, size, store) as job:
        world = job.world()
        calls: list[int] = []
        for index in range(50):
            work = world.all_reduce(np.ones(10_000))
            work.when_done(lambda index=index: calls.append(index))
            del work  # With its array: the library keeps what it needs.
        last = world.barrier()
        last.wait()
        assert last.done()
        assert last.error() is None
        assert last.wait_for(0)
        assert "done" in repr(last)
        world.barrier().wait()
        assert sorted(calls) == list(range(50))


def test_work_goes_on_if_nobody_waits(tmp_path: Path) -> None:
    results_of(dropped_work, 2, file_store(tmp_path))


def arrays_of_dropped_works(say: Any, rank: int, size: int, store: str) -> None:
    """Rank 0 drops works and arrays while rank 1 has not begun the operations yet."""
    with connect(rank, size, store) as job:
        world = job.world()
        kept: list[weakref.ref[np.ndarray]] = []

        def fresh(value: float = 1.0) -> np.ndarray:
            array = np.full(1000, value)
            kept.append(weakref.ref(array))
            return array

        if rank == 1:
            world.receive(np.zeros(1), 0).wait()
        results = [fresh(), [fresh(0), fresh(0)], [fresh(0), fresh(0)]]
        world.all_reduce(results[0])
        world.all_gather(fresh(rank + 2), results[1])
        world.all_to_all([fresh(3), fresh(4)], results[2])
        if rank == 0:
            del results
            gc.collect()
            lost = [index for index, array in enumerate(kept) if array() is None]
            assert not lost, f"their memory is free while operations may still use it: {lost}"
            world.send(np.zeros(1), 1).wait()
        world.barrier().wait()
        if rank == 1:
            assert (results[0] == 2).all()
            assert [part[0] for part in results[1]] == [2, 3]
            assert [part[-1] for part in results[2]] == [4, 4]
            del results
        # The library lets go of them after the operations, on a thread of its own.
        deadline = time.monotonic() + 60
        while any(array() is not None for array in kept) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert all(array() is None for array in kept)


def test_arrays_of_a_dropped_work_live_until_it_ends(tmp_path: Path) -> None:
    results_of(arrays_of_dropped_works, 2, file_store(tmp_path))


def over_a_store_server(say: Any, rank: int, size: int, address: str) -> int:
    with connect(rank, size, address) as job:
        total = np.array(rank)
        job.world().all_reduce(total).wait()
        return int(total)


def test_ranks_find_one_another_over_tcp() -> None:
    with tokenyard.StoreServer(secret="of the tests") as server:
        assert results_of(over_a_store_server, 3, server.address) == [3, 3, 3]
