"""torch.distributed groups whose ranks die, that are aborted, shrink or are reconfigured."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks import Rank, ranks_of, results, results_of
from torch_ranks import dist, in_job, needs_torch, torch, total, until_aborted

import tokenyard

pytestmark = needs_torch


def shrink(say: Any, rank: int, size: int, folder: Path, lost: int) -> list[int]:
    with in_job(rank, size, folder):
        pair = dist.new_group([0, 1])
        say("operating")
        error = until_aborted(rank)
        assert error.lost == [lost]
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        assert backend.supports_shrinking
        group = dist.shrink_group([lost])
        assert group is dist.group.WORLD
        assert dist.get_world_size() == group.size() == size - 1
        assert dist.get_rank() == rank - (rank > lost)
        assert tokenyard.torch.collectives().size == size - 1
        seen = [total(rank)]
        again = dist.new_group([1, 0])  # In the remaining ranks' job, by their new numbers.
        seen.append(total(10 * rank, again))
        if rank < 2:
            with pytest.raises((ValueError, RuntimeError)):
                total(1, pair)  # torch destroys the others of a default group that shrinks.
        dist.barrier()
    return seen


@pytest.mark.parametrize("lost", [0, 2])
def test_shrink_group_goes_on_without_the_dead(tmp_path: Path, lost: int) -> None:
    with ranks_of(shrink, 3, tmp_path, lost) as ranks:
        for rank in ranks:
            rank.hears("operating")
        ranks[lost].kill()
        seen = results(ranks[rank] for rank in range(3) if rank != lost)
    assert seen == [[3 - lost, 10 * (3 - lost)]] * 2


def shrink_living(say: Any, rank: int, size: int, folder: Path) -> list[int]:
    with in_job(rank, size, folder):
        told = dist.FileStore(str(folder / "told"), -1)
        if rank == 1:
            told.get("they have shrunk")
            return []  # It leaves the job in which only it remains.
        waiting = dist.all_reduce(torch.ones(1), async_op=True)  # Rank 1 does not come.
        dist.shrink_group([1], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
        # Or the other one has already left the old job.
        with pytest.raises((tokenyard.Cancelled, tokenyard.OperationAborted)):
            waiting.wait()
        told.set("they have shrunk", "")
        for _ in range(100):
            seen = [total(rank), dist.get_rank()]
        dist.barrier()
    return seen


def test_shrink_group_leaves_the_living_alone(tmp_path: Path) -> None:
    assert results_of(shrink_living, 3, tmp_path) == [[2, 0], [], [2, 1]]


def shrink_part(say: Any, rank: int, size: int, folder: Path) -> int:
    with in_job(rank, size, folder):
        trio = dist.new_group([0, 1, 3])
        assert total(1) == size
        part = dist.shrink_group([1], trio) if rank in (0, 3) else None
        if part is not None:
            assert dist.get_process_group_ranks(part) == [0, 3]
            assert total(rank, part) == 3
        seen = total(rank)  # The default group is unchanged.
        dist.barrier()
    return seen


def test_a_part_of_the_ranks_shrinks(tmp_path: Path) -> None:
    assert results_of(shrink_part, 4, tmp_path) == [6] * 4


def abort(say: Any, rank: int, size: int, folder: Path) -> None:
    with in_job(rank, size, folder):
        told = dist.FileStore(str(folder / "told"), -1)
        pair = dist.new_group([0, 1])
        assert total(1) == size
        if rank == 0:
            work = dist.all_reduce(torch.ones(3), group=pair, async_op=True)
            error = error_of_waiting(work, lambda: torch_abort(pair))
            assert isinstance(error, tokenyard.Cancelled)
            with pytest.raises((ValueError, RuntimeError)):
                total(1, pair)
        assert total(2) == 2 * size  # The others work.
        if rank == 0:
            work = dist.barrier(async_op=True)
            error = error_of_waiting(work, torch_abort)
            assert isinstance(error, tokenyard.Cancelled)
            assert not dist.is_initialized()
            told.set("rank 0 has aborted", "")
        else:
            told.get("rank 0 has aborted")
            assert until_aborted(rank).lost == [0]
            backend = dist.group.WORLD._get_backend(torch.device("cpu"))
            if hasattr(backend, "get_error"):
                assert "REMOTE" in str(backend.get_error())
            torch_abort()
    with in_job(rank, size, folder / "again"):
        assert total(3) == 3 * size
        dist.barrier()


def torch_abort(group: Any = None) -> None:
    dist.distributed_c10d._abort_process_group(group)


def error_of_waiting(work: Any, call: Callable[[], Any]) -> BaseException | None:
    """Returns the error of a wait for `work` when `call` is called."""
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            work.wait()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    call()
    thread.join(30)
    assert not thread.is_alive()
    return raised[0] if raised else None


def test_abort_ends_what_waits(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    results_of(abort, 2, tmp_path)


def reconfigure(say: Any, rank: int, size: int, folder: Path, lost: int) -> list[int]:
    with in_job(rank, size, folder, reconfigurable=True):
        exchange = dist.FileStore(str(folder / "handles"), -1)
        assert dist._supports_reconfigure()
        with pytest.raises(tokenyard.Cancelled):
            total(1)  # Not in a job yet.
        exchange.set(f"first/{rank}", dist._get_reconfigure_handle())
        handles = [exchange.get(f"first/{other}").decode() for other in range(size)]
        with pytest.raises(tokenyard.InvalidArgument):
            dist._reconfigure(1, [handle for handle in handles if handle != handles[rank]])
        dist._reconfigure(1, set(handles)).wait()
        seen = [total(rank)]
        say("operating")
        until_aborted(rank)
        left = [handle for other, handle in enumerate(handles) if other != lost]
        newcomer = exchange.get("newcomer").decode()
        dist._reconfigure(2, [newcomer, *left]).wait()
        assert dist.get_world_size() == size
        seen += [dist.get_rank(), total(rank)]
        dist.barrier()
    return seen


def reconfigured_newcomer(say: Any, rank: int, size: int, folder: Path, lost: int) -> list[int]:
    with in_job(rank, size, folder, reconfigurable=True):
        exchange = dist.FileStore(str(folder / "handles"), -1)
        handle = dist._get_reconfigure_handle()
        exchange.set("newcomer", handle)
        handles = [exchange.get(f"first/{other}").decode() for other in range(size)]
        left = [theirs for other, theirs in enumerate(handles) if other != lost]
        dist._reconfigure(2, [handle, *left]).wait()
        seen = [dist.get_rank(), total(10)]
        dist.barrier()
    return seen


@pytest.mark.skipif(
    torch is not None and not hasattr(dist, "_reconfigure"), reason="needs torch 2.13 or newer"
)
def test_reconfigure_puts_a_group_together_anew(tmp_path: Path) -> None:
    with ranks_of(reconfigure, 3, tmp_path, 0) as ranks:
        for rank in ranks:
            rank.hears("operating")
        ranks[0].kill()
        newcomer = Rank(reconfigured_newcomer, 0, 3, tmp_path, 0)
        try:
            assert newcomer.result() == [0, 13]
            assert results(ranks[rank] for rank in (1, 2)) == [[3, 1, 13], [3, 2, 13]]
        finally:
            newcomer.end()


UNBOUND = "No device associated with the default pg"
"""Error of torch 2.11's own split_group for a default group that is bound to no GPU."""


def split(say: Any, rank: int, size: int, folder: Path) -> list[int] | str:
    with in_job(rank, size, folder):
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        assert backend.supports_splitting
        try:
            half = dist.split_group(split_ranks=[[2, 0], [1, 3]], group_desc="halves")
        except RuntimeError as error:
            if UNBOUND not in str(error):
                raise
            return UNBOUND
        assert tokenyard.torch.collectives(half) is tokenyard.torch.collectives()
        seen = [dist.get_rank(half), total(rank, half)]
        assert dist.get_process_group_ranks(half) == ([2, 0] if rank in (0, 2) else [1, 3])
        # A part of a part, by ranks of the part; the others are in none.
        alone = dist.split_group(half, split_ranks=[[1]])
        if rank in (0, 3):
            assert total(rank, alone) == rank
            dist.destroy_process_group(alone)
        else:
            assert alone == dist.GroupMember.NON_GROUP_MEMBER
        dist.destroy_process_group(half)
        again = dist.split_group(split_ranks=[[0, 1, 2]])
        seen.append(total(1, again) if rank < 3 else 0)
        seen.append(total(1))
        dist.barrier()
    return seen


def test_a_group_splits(tmp_path: Path) -> None:
    seen = results_of(split, 4, tmp_path)
    if seen == [UNBOUND] * 4:
        pytest.skip(f"torch {torch.__version__} splits only groups that are bound to a GPU")
    assert seen == [[1, 2, 3, 4], [0, 4, 3, 4], [0, 2, 3, 4], [1, 4, 0, 4]]
