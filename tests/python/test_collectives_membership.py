"""Ranks that die, hang, leave, come back and join, as real processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import Rank, file_store, ranks_of, results
from test_collectives import connect

import tokenyard

SECRET = "of the tests"


def total_of(group: tokenyard.Group, mine: int) -> int:
    array = np.full(1000, mine, np.int64)
    group.all_reduce(array).wait()
    assert (array == array[0]).all()
    return int(array[0])


def until_aborted(world: tokenyard.Group) -> tokenyard.OperationAborted:
    """Operates until a rank is lost; the input of the aborted operation is unchanged."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        array = np.full(1000, world.rank, np.int64)
        try:
            world.all_reduce(array).wait()
        except tokenyard.OperationAborted as error:
            assert (array == world.rank).all()
            return error
    raise AssertionError("nobody was lost")


def survive(say: Any, rank: int, size: int, store: str, lost: list[int]) -> dict[str, Any]:
    with connect(rank, size, store, silence=2) as job:
        changed = threading.Event()
        listening = job.on_change(changed.set)
        world = job.world()
        assert total_of(world, rank) == sum(range(size))
        say("operating")
        error = until_aborted(world)
        with pytest.raises(tokenyard.OperationAborted):  # Until a rank has acted.
            world.barrier().wait()
        active = job.shrink()
        survivors = [other for other in range(size) if other not in lost]
        # Two simultaneous deaths may be detected one after the other.
        while active != survivors:
            error = until_aborted(world)
            active = job.shrink()
        assert world.active_ranks() == survivors == job.active_ranks()
        assert total_of(world, rank) == sum(survivors)

        out = np.full((size, 2), -1, np.int64)
        world.all_gather(np.array([rank, rank]), out).wait()
        assert out[:, 0].tolist() == [r if r in survivors else 0 for r in range(size)]
        assert changed.wait(10)
        listening.stop()
        epoch = job.epoch()  # The first rank to finish leaves, and starts another.
        world.barrier().wait()
        return dict(operation=error.operation, epoch=epoch, lost=error.lost)


@pytest.mark.parametrize(("size", "lost"), [(3, [0]), (3, [2]), (5, [0, 3]), (2, [0]), (4, [1])])
def test_survivors_go_on_without_the_dead(tmp_path: Path, size: int, lost: list[int]) -> None:
    with ranks_of(survive, size, file_store(tmp_path), lost) as ranks:
        for rank in ranks:
            rank.hears("operating")
        for rank in lost:
            ranks[rank].kill()
        seen = results(ranks[rank] for rank in range(size) if rank not in lost)
    assert all(one["operation"] == "all_reduce" for one in seen)
    assert all(one["epoch"] == seen[0]["epoch"] > 1 for one in seen)
    assert all(set(one["lost"]) <= set(lost) for one in seen)


def send_to_the_dead(say: Any, rank: int, size: int, store: str, on_failure: str) -> list[int]:
    with connect(rank, size, store, silence=2, on_failure=on_failure, eager_limit=0) as job:
        world = job.world()
        processes = np.zeros((size, 1), np.int64)
        world.all_gather(np.array([os.getpid()]), processes).wait()
        if rank != 0:
            threading.Event().wait()
        os.kill(int(processes[1, 0]), signal.SIGKILL)
        with pytest.raises(tokenyard.OperationAborted) as caught:
            world.send(np.zeros(1, np.uint8), 1).wait()
        return caught.value.lost


@pytest.mark.parametrize("on_failure", ["raise", "exclude"])
def test_a_byte_is_not_sent_to_a_rank_that_was_just_killed(tmp_path: Path, on_failure: str) -> None:
    with ranks_of(send_to_the_dead, 2, file_store(tmp_path), on_failure) as ranks:
        assert ranks[0].result() == [1]


def be_replaced(say: Any, rank: int, size: int, store: str, lost: int) -> int:
    with connect(rank, size, store, silence=2) as job:
        world = job.world()
        pair = None
        if rank in (lost, (lost + 1) % size):
            pair = job.group(sorted((lost, (lost + 1) % size)), "pair")
        say("operating")
        until_aborted(world)
        job.replace(lost)
        assert job.active_ranks() == list(range(size))
        if pair is not None:  # Groups come back with their rank.
            assert total_of(pair, 1) == 2
        return total_of(world, rank)


def replacement(say: Any, rank: int, size: int, store: str) -> int:
    options = dict(secret=SECRET, rank=rank, size=size, silence=2, timeout=60)
    with tokenyard.Collectives.join(store, **options) as job:
        pair = job.group(sorted((rank, (rank + 1) % size)), "pair")
        assert total_of(pair, 1) == 2
        return total_of(job.world(), rank)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_new_process_takes_a_dead_ones_place(tmp_path: Path, lost: int) -> None:
    store = file_store(tmp_path)
    with ranks_of(be_replaced, 3, store, lost) as ranks:
        for rank in ranks:
            rank.hears("operating")
        ranks[lost].kill()
        newcomer = Rank(replacement, lost, 3, store)
        try:
            seen = results(ranks[rank] for rank in range(3) if rank != lost)
            assert [*seen, newcomer.result()] == [3, 3, 3]
        finally:
            newcomer.end()


def grow_by_two(say: Any, rank: int, size: int, store: str) -> int:
    with connect(rank, size, store, size_max=4) as job:
        assert total_of(job.world(), rank) == 1
        say("operating")
        job.grow(2)
        assert job.active_ranks() == [0, 1, 2, 3]
        return total_of(job.world(), rank)


def newcomer_of_four(say: Any, rank: int, store: str) -> int:
    options = dict(secret=SECRET, rank=rank, size=2, size_max=4, timeout=60)
    with tokenyard.Collectives.join(store, **options) as job:
        return total_of(job.world(), rank)


def test_a_job_grows(tmp_path: Path) -> None:
    store = file_store(tmp_path)
    with ranks_of(grow_by_two, 2, store) as ranks:
        for rank in ranks:
            rank.hears("operating")
        newcomers = [Rank(newcomer_of_four, rank, store) for rank in (2, 3)]
        try:
            assert [rank.result() for rank in [*ranks, *newcomers]] == [6, 6, 6, 6]
        finally:
            for rank in newcomers:
                rank.end()


def exclude(say: Any, rank: int, size: int, store: str) -> list[int]:
    """No error is raised: operations run again among the remaining ranks."""
    with connect(rank, size, store, silence=2, on_failure="exclude") as job:
        world = job.world()
        say("operating")
        totals = []
        while len(job.active_ranks()) == size:
            totals.append(total_of(world, rank))
        for _ in range(10):
            totals.append(total_of(world, rank))
        return sorted(set(totals))


def test_operations_may_leave_the_dead_out(tmp_path: Path) -> None:
    with ranks_of(exclude, 3, file_store(tmp_path)) as ranks:
        for rank in ranks:
            rank.hears("operating")
        ranks[1].kill()
        for rank in (0, 2):
            seen = ranks[rank].result()
            assert set(seen) <= {2, 3}  # Either with rank 1 or without.
            assert 2 in seen


def operate_until_all_know(job: tokenyard.Collectives, first: int) -> None:
    """Every operation includes all three ranks, original or replaced."""
    known = 0
    while not known:
        array = np.array([job.rank, job.epoch() != first])
        job.world().all_reduce(array).wait()
        total, known = array.tolist()
        assert total == 3


def retry(say: Any, rank: int, size: int, store: str) -> int:
    with connect(rank, size, store, silence=2, on_failure="retry") as job:
        say("operating")
        operate_until_all_know(job, job.epoch())
        return job.counters().retried


def retry_newcomer(say: Any, rank: int, size: int, store: str) -> None:
    options = dict(secret=SECRET, rank=rank, size=size, silence=2, timeout=60, on_failure="retry")
    with tokenyard.Collectives.join(store, **options) as job:
        operate_until_all_know(job, job.epoch())


def test_operations_may_wait_for_a_replacement(tmp_path: Path) -> None:
    store = file_store(tmp_path)
    with ranks_of(retry, 3, store) as ranks:
        for rank in ranks:
            rank.hears("operating")
        ranks[1].kill()
        newcomer = Rank(retry_newcomer, 1, 3, store)
        try:
            newcomer.result()
            assert all(ranks[rank].result() >= 1 for rank in (0, 2))
        finally:
            newcomer.end()


def leave(say: Any, rank: int, size: int, store: str) -> list[int]:
    with connect(rank, size, store, silence=2) as job:
        world = job.world()
        assert total_of(world, rank) == 3
        if rank == 1:
            job.leave()
            return []
        deadline = time.monotonic() + 20
        while (active := job.shrink()) == [0, 1, 2]:
            assert time.monotonic() < deadline
        assert total_of(world, rank) == 2
        return active


def test_a_rank_may_leave(tmp_path: Path) -> None:
    with ranks_of(leave, 3, file_store(tmp_path)) as ranks:
        assert [rank.result() for rank in ranks] == [[0, 2], [], [0, 2]]


def until_error(world: tokenyard.Group, **call: Any) -> tokenyard.Error:
    """Calls barriers until one fails."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        work = world.barrier(**call)
        try:
            work.wait()
        except tokenyard.Error as error:
            return error
        time.sleep(0.01)
    raise AssertionError("nothing went wrong")


def stopped(say: Any, rank: int, size: int, store: str) -> str:
    with connect(rank, size, store, silence=1) as job:
        world = job.world()
        assert total_of(world, rank) == 3
        say("operating")
        error = until_error(world)
        if rank == 1:
            assert isinstance(error, tokenyard.Fenced)
            assert error.epoch > 1
            return "fenced"
        assert isinstance(error, tokenyard.OperationAborted)
        assert error.lost == [1]
        assert job.shrink() == [0, 2]
        assert total_of(world, rank) == 2
        say("without it")
        time.sleep(2)  # While it wakes: its messages are ignored.
        assert total_of(world, rank) == 2
        return "went on"


def test_who_was_stopped_is_fenced_when_it_wakes(tmp_path: Path) -> None:
    with ranks_of(stopped, 3, file_store(tmp_path)) as ranks:
        for rank in ranks:
            rank.hears("operating")
        ranks[1].stop()
        for rank in (0, 2):
            ranks[rank].hears("without it")
        ranks[1].wake()
        assert [rank.result() for rank in ranks] == ["went on", "fenced", "went on"]


def no_quorum(say: Any, rank: int, size: int, store: str) -> list[int]:
    with connect(rank, size, store, silence=1, witness=False, timeout=5) as job:
        say("operating")
        # If one death is detected before the other, two of three continue; one of two does not.
        for _ in range(2):
            error = until_error(job.world(), timeout=3)
            assert isinstance(error, tokenyard.OperationAborted | tokenyard.QuorumLost)
            try:
                job.shrink()
            except tokenyard.QuorumLost as lost:
                return lost.answering
        raise AssertionError("a minority went on")


def test_a_minority_does_not_go_on(tmp_path: Path) -> None:
    with ranks_of(no_quorum, 3, file_store(tmp_path)) as ranks:
        for rank in ranks:
            rank.hears("operating")
        ranks[0].kill()
        ranks[1].kill()
        assert ranks[2].result() in ([], [2])
