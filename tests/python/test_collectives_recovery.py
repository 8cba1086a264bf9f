"""Recovery of survivors: late, in any order, after others have recovered. Real processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import Rank, file_store, ranks_of, results, results_of
from test_collectives import connect
from test_collectives_membership import SECRET, total_of, until_aborted

import tokenyard


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.005)


def total_after_recovery(job: tokenyard.Collectives) -> int:
    """Returns the sum over all ranks, each of which recovers as documented."""
    while True:
        try:
            return total_of(job.world(), job.rank)
        except tokenyard.OperationAborted:
            job.recover(wait_for_replacements=True)


def spare(say: Any, rank: int, size: int, store: str) -> int:
    with tokenyard.Collectives.join(
        store, secret=SECRET, rank=rank, size=size, size_max=size + 2, silence=2, timeout=60
    ) as job:
        return total_after_recovery(job)


@contextlib.contextmanager
def spares(store: str, size: int, *ranks: int) -> Iterator[list[Rank]]:
    """Starts processes that wait to be admitted."""
    waiting = [Rank(spare, rank, size, store) for rank in ranks]
    try:
        yield waiting
    finally:
        for one in waiting:
            one.end()


def recover_late(say: Any, rank: int, size: int, store: str, late: str) -> int:
    with connect(rank, size, store, silence=2) as job:
        say("operating")
        until(lambda: job.waiting_ranks() == [1], "the coming of the spare rank")
        say("the spare waits")
        assert until_aborted(job.world()).lost == [1]
        if rank != 3:
            job.replace(1)
            return total_of(job.world(), rank)
        # No rank is missing any more when this one recovers.
        until(lambda: job.active_ranks() == [0, 1, 2, 3], "the replacement")
        with pytest.raises(
            tokenyard.OperationAborted, match=r"stopped in epoch .* rank 1 was lost"
        ):
            job.world().barrier().wait()
        if late == "recover":
            assert job.recover(wait_for_replacements=True) == [0, 1, 2, 3]
        else:
            job.replace(1)
            job.replace(1)  # A call for a place that is filled ends.
        return total_of(job.world(), rank)


@pytest.mark.parametrize("late", ["recover", "replace"])
def test_a_late_survivor_of_a_hot_spare_goes_on(tmp_path: Path, late: str) -> None:
    store = file_store(tmp_path)
    with ranks_of(recover_late, 4, store, late) as ranks:
        for rank in ranks:
            rank.hears("operating")
        with spares(store, 4, 1) as [newcomer]:
            for rank in ranks:
                rank.hears("the spare waits")
            ranks[1].kill()
            seen = results(ranks[rank] for rank in (0, 2, 3))
            assert [*seen, newcomer.result()] == [6, 6, 6, 6]


def replace_two(say: Any, rank: int, size: int, store: str) -> int:
    orders = {0: [1, 2], 3: [2, 1], 4: [1, 2]}
    with connect(rank, size, store, silence=2) as job:
        say("operating")
        until_aborted(job.world())
        until(lambda: {1, 2}.isdisjoint(job.active_ranks()) or rank == 4, "the second loss")
        if rank == 4:  # Both joined long before this call.
            until(lambda: job.active_ranks() == [0, 1, 2, 3, 4], "the replacements")
        for lost in orders[rank]:
            job.replace(lost)
        return total_after_recovery(job)


def test_two_lost_ranks_are_replaced_in_any_order(tmp_path: Path) -> None:
    store = file_store(tmp_path)
    with ranks_of(replace_two, 5, store) as ranks:
        for rank in ranks:
            rank.hears("operating")
        ranks[1].kill()
        ranks[2].kill()
        with spares(store, 5, 2, 1) as newcomers:
            seen = results(ranks[rank] for rank in (0, 3, 4))
            assert [*seen, *(newcomer.result() for newcomer in newcomers)] == [10] * 5


def grow_twice(say: Any, rank: int, size: int, store: str) -> tuple[int, int]:
    with connect(rank, size, store, size_max=5, timeout=30) as job:
        say("operating")
        if rank == 2:
            until(lambda: job.size == 5, "the growth")
        job.grow(1)
        job.grow(1)
        with pytest.raises(tokenyard.InvalidArgument, match="largest size"):
            job.grow(1)
        with pytest.raises(tokenyard.InvalidArgument):
            job.grow(2**32 - 1)
        return job.size, total_of(job.world(), rank)


def test_a_job_grows_twice_and_a_late_rank_with_it(tmp_path: Path) -> None:
    store = file_store(tmp_path)
    with ranks_of(grow_twice, 3, store) as ranks:
        for rank in ranks:
            rank.hears("operating")
        with spares(store, 3, 4, 3) as newcomers:
            assert [rank.result() for rank in ranks] == [(5, 10)] * 3
            assert [newcomer.result() for newcomer in newcomers] == [10, 10]


def be_late(say: Any, rank: int, size: int, store: str) -> list[str]:
    with connect(rank, size, store, timeout=30) as job:
        world, told = job.world(), []
        world.barrier().wait()
        if rank == 1:
            time.sleep(2)
        for _ in range(2):
            with pytest.raises(tokenyard.PeerTimeout) as error:
                world.barrier(timeout=0.5 if rank != 1 else 30).wait()
            assert error.value.rank == 1
            told.append(str(error.value))
        assert job.recover() == [0, 1, 2]
        assert total_of(world, rank) == 3
        return told


def test_a_group_that_stopped_at_a_deadline_says_so_itself(tmp_path: Path) -> None:
    for rank, (first, second) in enumerate(results_of(be_late, 3, file_store(tmp_path))):
        assert 'barrier 2 of group "world"' in first
        if rank == 1:
            assert "this rank came too late" in first
            assert "did not answer" not in first
        else:
            assert "rank 1 has not begun it" in first
        assert second.startswith('barrier 2 of group "world" was not begun')
        assert "stopped in epoch" in second
        assert "s before" in second
        assert ("this rank came too late" if rank == 1 else "for want of rank 1") in second
        assert "Collectives.recover or shrink" in second


def until_fenced(job: tokenyard.Collectives) -> None:
    for _ in range(1_000_000):
        try:
            total_of(job.world(), job.rank)
        except tokenyard.Fenced:
            return
    raise AssertionError("nobody put this rank out")


def evict(say: Any, rank: int, size: int, store: str) -> Any:
    with connect(rank, size, store) as job:
        if rank == 1:
            # Rank 0 may be done with the first sum, and evict this rank, before this rank is.
            until_fenced(job)
            assert job.active_ranks() == job.world().active_ranks() == []
            return job.rank, job.size
        total_of(job.world(), rank)
        if rank == 0:
            with pytest.raises(tokenyard.InvalidArgument):
                job.evict(0)
            with pytest.raises(tokenyard.InvalidArgument):
                job.evict(3)
            job.evict(1)
            assert job.active_ranks() == [0, 2]
        assert until_aborted(job.world()).lost == [1]
        assert job.recover() == [0, 2]
        return total_of(job.world(), rank)


def test_a_living_rank_is_put_out_by_name(tmp_path: Path) -> None:
    assert results_of(evict, 3, file_store(tmp_path)) == [2, (1, 3), 2]


def test_jobs_of_one_process_leave_nothing_and_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither needs a store; with a file store the ranks would find one another."""
    monkeypatch.chdir(tmp_path)
    before = set(Path("/").iterdir())
    with (
        tokenyard.Collectives.alone(rank=0, size=3) as first,
        tokenyard.Collectives.alone(rank=0, size=3) as second,
    ):
        for job in (first, second):
            array = np.ones(4, np.float32)
            job.world().all_reduce(array).wait()
            assert job.active_ranks() == [0]
            assert array.tolist() == [1.0] * 4
    assert not list(tmp_path.iterdir())
    assert set(Path("/").iterdir()) == before
