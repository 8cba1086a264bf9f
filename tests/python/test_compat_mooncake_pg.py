"""mooncake.pg: groups that lose, replace, add and deactivate ranks, as Mooncake's users do it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from ranks import Rank, ranks_of, results, results_of
from torch_ranks import dist, needs_torch, torch, total

import tokenyard

PACKAGE = Path(__file__).parents[2] / "compat" / "mooncake"
sys.path.insert(0, str(PACKAGE))
pytestmark = needs_torch


@contextlib.contextmanager
def in_group(rank: int, size: int, folder: Path, *options: Any) -> Iterator[Any]:
    """Joins the default group of backend mooncake-cpu; gives mooncake.pg."""
    from mooncake import pg

    torch.set_num_threads(1)
    pg.set_collective_timeout_us(3_000_000)
    dist.init_process_group(
        "mooncake-cpu",
        store=dist.FileStore(str(folder / "store"), -1),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
        pg_options=pg.MooncakeBackendOptions(*options) if options else None,
    )
    try:
        yield pg
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def world() -> Any:
    return dist.group.WORLD


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.01)


def admit(pg: Any, ranks: list[int], group: Any = None) -> None:
    """Waits until processes wait in the places of `ranks`, and activates them."""
    chosen = group or world()
    until(lambda: all(pg.get_peer_state(chosen, ranks)), f"joining of {ranks}")
    answer = pg.recover_ranks(chosen, ranks)
    assert answer.status == pg.ProposalStatus.Applied, answer.reject_reason
    assert answer.new_epoch == pg.get_current_epoch(chosen)


def active(pg: Any, group: Any = None) -> list[int]:
    return pg.get_active_ranks(group or world()).tolist()


def parts_of_all(rank: int, size: int) -> None:
    """Gathers and scatters with lists of `size` parts."""
    assert dist.get_world_size() == size
    gathered = torch.zeros(size, dtype=torch.int64)
    dist.all_gather_into_tensor(gathered, torch.tensor([rank + 1]))
    assert gathered.tolist() == list(range(1, size + 1))
    lists = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(lists, torch.tensor([rank + 1]))
    assert [int(one) for one in lists] == list(range(1, size + 1))
    scattered = torch.zeros(1, dtype=torch.int64)
    dist.reduce_scatter_tensor(scattered, torch.arange(size))
    assert int(scattered) == rank * size
    exchanged = torch.zeros(size, dtype=torch.int64)
    dist.all_to_all_single(exchanged, torch.full((size,), rank))
    assert exchanged.tolist() == list(range(size))
    into = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    dist.all_to_all(into, [torch.tensor([rank]) for _ in range(size)])
    assert [int(one) for one in into] == list(range(size))
    dist.gather(torch.tensor([rank]), into if rank == 0 else None, dst=0)
    dist.scatter(scattered, into if rank == 0 else None, src=0)
    assert int(scattered) == rank


def exchange(pg: Any, rank: int, peer: int) -> list[bool]:
    """Sends and receives a number; returns whether each message had success."""
    received = torch.full((1,), -1)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.tensor([rank]), peer),
            dist.P2POp(dist.irecv, received, peer),
        ]
    )
    assert len(works) == 2
    for work in works:
        work.wait()
    success = [pg.get_local_success(work) for work in works]
    assert not success[1] or int(received) == peer
    return success


def too_few_parts(size: int) -> None:
    """No part of a rank that runs may be left out."""
    from mooncake import pg_group

    pg_group.LOSS_NOTICED_S = 0.1
    with pytest.raises(tokenyard.InvalidArgument, match=f"{size} parts.*active"):
        dist.all_gather_into_tensor(torch.zeros(size - 1), torch.zeros(1))


def collect(say: Any, rank: int, size: int, folder: Path) -> list[int]:
    seen = []
    for options in ((), (size,)):
        with in_group(rank, size, folder, *options) as pg:
            assert dist.get_rank() == rank
            assert dist.get_backend() == "mooncake-cpu"
            work = dist.all_reduce(torch.ones(3), async_op=True)
            work.wait()
            assert work.is_completed()
            assert pg.get_local_success(work)
            assert pg.get_failed_ranks_hint(work).tolist() == [0] * size
            parts_of_all(rank, size)
            assert all(exchange(pg, rank, 1 - rank)) if rank < 2 else True
            pair = dist.new_group([0, 2], backend="mooncake-cpu")
            if rank != 1:
                seen.append(total(rank, pair))
                dist.destroy_process_group(pair)
            assert active(pg) == [1] * size
            assert pg.get_num_synced_ranks(world()) == size
            too_few_parts(size)
            dist.barrier()
            seen.append(total(rank))
    return seen


def test_collectives_and_messages(tmp_path: Path) -> None:
    assert results_of(collect, 3, tmp_path) == [[2, 3, 2, 3], [3, 3], [2, 3, 2, 3]]


def lose_one(say: Any, rank: int, size: int, folder: Path) -> int:
    with in_group(rank, size, folder, size) as pg:
        lost = size - 1
        if rank == 0:
            assert all(exchange(pg, rank, lost))
        elif rank == lost:
            assert all(exchange(pg, rank, 0))
        parts_of_all(rank, size)
        epoch = pg.get_current_epoch(world())
        if rank == lost:
            say("leaving")
            os._exit(0)
        # The last place is lost: lists have one part less, whether this rank knows yet or not.
        gathered = torch.zeros(lost, dtype=torch.int64)
        dist.all_gather_into_tensor(gathered, torch.tensor([rank]))
        assert gathered.tolist() == list(range(lost))
        parts_of_all(rank, lost)
        # A message to the lost rank ends without an error, and says that it had no success.
        work = dist.isend(torch.tensor([1]), dst=lost)
        work.wait()
        assert not pg.get_local_success(work)
        assert pg.get_failed_ranks_hint(work).tolist() == [0] * lost + [1]
        assert active(pg) == [1] * lost + [0]
        assert pg.get_peer_state(world(), [0, lost]) == [True, False]
        assert pg.get_current_epoch(world()) > epoch
        status = pg.SyncAfterFailureStatus
        assert pg.sync_after_failure(world()).status == status.Reconciled
        assert pg.sync_after_failure(world()).status == status.NoPending
        work = dist.all_reduce(torch.ones(1), async_op=True)
        work.wait()
        assert pg.get_local_success(work)  # The rank was inactive before.
        say("survived")
        if rank == 0:  # One member's call is enough.
            admit(pg, [lost])
        else:
            until(lambda: active(pg) == [1] * size, "activation")
        return whole_again(pg, rank, size)


def whole_again(pg: Any, rank: int, size: int) -> int:
    assert active(pg) == [1] * size
    parts_of_all(rank, size)
    if rank in (0, size - 1):
        assert all(exchange(pg, rank, size - 1 - rank))
    return total(rank)


def take_its_place(say: Any, rank: int, size: int, folder: Path, *options: bool) -> int:
    with in_group(rank, size, folder, size, True, *options) as pg:
        assert active(pg) == [int(other == rank) for other in range(size)]
        assert total(rank) == rank
        pg.join_group(world())
        return whole_again(pg, rank, size)


def test_a_lost_rank_is_replaced(tmp_path: Path) -> None:
    with ranks_of(lose_one, 3, tmp_path) as ranks:
        ranks[2].hears("leaving")
        for rank in ranks[:2]:
            rank.hears("survived")
        newcomer = Rank(take_its_place, 2, 3, tmp_path)
        try:
            assert results([*ranks[:2], newcomer]) == [3, 3, 3]
        finally:
            newcomer.end()


def gather_objects(say: Any, rank: int, size: int, folder: Path) -> list[Any]:
    with in_group(rank, size, folder, size) as pg:
        total(rank)
        if rank == 1:
            say("leaving")
            os._exit(0)
        until(lambda: active(pg) == [1, 0, 1], "the loss of rank 1")
        objects: list[Any] = ["unwritten"] * size
        dist.all_gather_object(objects, f"rank {rank}")
        return objects


def test_a_lost_rank_gives_no_object(tmp_path: Path) -> None:
    with ranks_of(gather_objects, 3, tmp_path) as ranks:
        ranks[1].hears("leaving")
        assert results([ranks[0], ranks[2]]) == [["rank 0", None, "rank 2"]] * 2


def welcome(say: Any, rank: int, size: int, folder: Path) -> list[int]:
    """Two ranks whose default group and subgroups have room for two more."""
    with in_group(rank, size, folder, 4) as pg:
        assert active(pg) == [1, 1, 0, 0]
        parts_of_all(rank, 2)
        groups = subgroups(pg, [[0], [1], [0, 1]])
        assert total(rank, groups[2]) == 1
        own = groups[rank]
        assert active(pg, own) == [1, 0]
        assert pg.get_peer_state(world(), [2, 3]) == [False, False]
        say("operating")
        admit(pg, [2, 3])
        admit(pg, [1], own)
        admit(pg, [2, 3], groups[2])
        return all_four(pg, rank, own, groups[2])


def subgroups(pg: Any, lists: list[list[int]], *options: bool) -> list[Any]:
    return [
        dist.new_group(
            ranks, backend="mooncake-cpu", pg_options=pg.MooncakeBackendOptions(places, *options)
        )
        for ranks, places in zip(lists, (2, 2, 4), strict=True)
    ]


def all_four(pg: Any, rank: int, own: Any, everybody: Any) -> list[int]:
    parts_of_all(rank, 4)
    assert active(pg) == active(pg, everybody) == [1] * 4
    assert dist.get_process_group_ranks(own) == [rank % 2, rank % 2 + 2]
    root = torch.tensor([rank])
    dist.broadcast(root, src=rank % 2 + 2, group=own)
    assert int(root) == rank % 2 + 2
    assert all(exchange(pg, rank, 3 - rank))
    return [total(rank), total(rank, own), total(rank, everybody)]


def come_in(say: Any, rank: int, folder: Path) -> list[int]:
    with in_group(rank, 4, folder, 4, True) as pg:
        groups = subgroups(pg, [[0, 2], [1, 3], [0, 1, 2, 3]], True)
        own = groups[rank - 2]
        assert dist.get_world_size() == 4
        assert [total(rank), total(rank, own), total(rank, groups[2])] == [rank] * 3
        with pytest.raises(tokenyard.InvalidArgument, match="joined the default group"):
            pg.join_group(own)
        pg.join_group(world())
        assert total(rank, own) == rank  # Not joined yet.
        pg.join_group(own)
        pg.join_group(groups[2])
        return all_four(pg, rank, own, groups[2])


def test_groups_are_extended_by_ranks_that_worked_alone_first(tmp_path: Path) -> None:
    with ranks_of(welcome, 2, tmp_path) as ranks:
        for rank in ranks:
            rank.hears("operating")
        newcomers = [Rank(come_in, rank, tmp_path) for rank in (2, 3)]
        try:
            expected = [[6, 2 * (rank % 2) + 2, 6] for rank in range(4)]
            assert results([*ranks, *newcomers]) == expected
        finally:
            for newcomer in newcomers:
                newcomer.end()


def manage(say: Any, rank: int, size: int, folder: Path) -> int:
    """Membership changes by calls only."""
    with in_group(rank, size, folder, size, False, False, False) as pg:
        parts_of_all(rank, size)
        if rank == 1:
            say("leaving")
            os._exit(0)
        tensor = torch.tensor([rank + 1])
        work = dist.all_reduce(tensor, async_op=True)
        while pg.get_local_success(work):  # Until the loss shows.
            work.wait()
            if pg.get_local_success(work):
                tensor = torch.tensor([rank + 1])
                work = dist.all_reduce(tensor, async_op=True)
        assert int(tensor) == 4
        assert pg.get_failed_ranks_hint(work).tolist() == [0, 1, 0]
        assert active(pg) == [1, 1, 1]
        assert dist.get_world_size() == 3
        pg.sync_after_failure(world())
        assert pg.get_peer_state(world(), [1]) == [False]
        answer = pg.deactivate_ranks(world(), [1])
        assert answer.status == pg.ViewUpdateStatus.Applied
        assert active(pg) == [1, 0, 1]
        work = dist.all_reduce(torch.ones(1), async_op=True)
        work.wait()
        assert pg.get_local_success(work)
        say("survived")
        admit(pg, [1])
        return whole_again(pg, rank, size)


def test_membership_that_a_program_manages_itself(tmp_path: Path) -> None:
    with ranks_of(manage, 3, tmp_path) as ranks:
        ranks[1].hears("leaving")
        for rank in (ranks[0], ranks[2]):
            rank.hears("survived")
        newcomer = Rank(take_its_place, 1, 3, tmp_path, False, False)
        try:
            assert results([ranks[0], newcomer, ranks[2]]) == [3, 3, 3]
        finally:
            newcomer.end()


def take_turns(say: Any, rank: int, size: int, folder: Path) -> int:
    """Rank 1 leaves and comes back, then rank 0 deactivates it; the process stays the same."""
    with in_group(rank, size, folder) as pg:
        parts_of_all(rank, size)
        pair = dist.new_group([1, 2], backend="mooncake-cpu")
        if rank != 0:
            answer = pg.deactivate_ranks(pair, [0])
            assert answer.status == pg.ProposalStatus.Rejected
            assert "default group" in answer.reject_reason
            assert total(rank, pair) == 3
        epoch = pg.get_current_epoch(world())
        if rank == 1:
            assert pg.deactivate_ranks(world(), [1]).status == pg.ProposalStatus.Applied
            assert total(7) == 7
            pg.join_group(world())
        else:
            until(lambda: active(pg) == [1, 0, 1], "departure")
            assert total(rank) == 2
            admit(pg, [1])
        assert pg.get_current_epoch(world()) > epoch
        parts_of_all(rank, size)
        if rank == 0:
            assert pg.deactivate_ranks(world(), [1]).status == pg.ProposalStatus.Applied
        if rank == 1:
            with pytest.raises(tokenyard.Fenced):
                total_for_ever(rank)
            pg.join_group(world())
            pg.join_group(pair)
        else:
            while total(rank) != 2:
                pass
            admit(pg, [1])
        if rank != 0:
            assert total(rank, pair) == 3
        return whole_again(pg, rank, size)


def total_for_ever(rank: int) -> None:
    while True:
        total(rank)


def test_a_deactivated_process_joins_again(tmp_path: Path) -> None:
    assert results_of(take_turns, 3, tmp_path) == [3, 3, 3]


def refused(call: Callable[..., Any], *args: Any, **named: Any) -> str:
    with pytest.raises((tokenyard.InvalidArgument, tokenyard.Unsupported)) as caught:
        call(*args, **named)
    return str(caught.value)


def test_options() -> None:
    from mooncake import pg

    make = pg.MooncakeBackendOptions
    assert make(4).max_group_size == make(max_group_size=4).max_group_size == 4
    assert (make(-1).max_group_size, make(4, True).is_extension) == (0, True)
    chosen = make(4, False, True, False)
    assert (chosen.auto_deactivate_on_failure, chosen.auto_sync_on_failure) == (True, False)
    mask = torch.ones(1, dtype=torch.int32)
    for with_tensor in (make(mask), make(mask, True, 1), make(active_ranks=mask)):
        assert with_tensor.active_ranks is mask
    assert "max_size" in refused(make, max_size=3)
    assert "auto_sync_on_failure" in refused(make, 4, False, False, True)
    assert "active_ranks" in refused(make, mask.float())
    assert "is_extension" in refused(make, 4, 1)
    assert "max_group_size" in refused(make, "4")
    assert "no option" in refused(make)
    assert "mlx5_0" not in refused(pg.set_device_filter, ["mlx5_0"])
    pg.set_device_filter([])
    assert "timeout" in refused(pg.set_p2p_timeout_us, 5)
    assert "None" in refused(pg.set_transfer_engine, object())
    pg.set_transfer_engine(None)
    assert "mooncake-cpu" in refused(pg.get_local_success, None)
    assert "mooncake-cpu" in refused(pg.get_active_ranks, object())


def test_groups_that_cannot_be_made(tmp_path: Path) -> None:
    from mooncake import pg

    def begin(backend: str, options: Any) -> None:
        store = dist.FileStore(str(tmp_path / "store"), 1)
        dist.init_process_group(backend, store=store, rank=0, world_size=1, pg_options=options)

    assert "mooncake-cpu" in refused(begin, "mooncake", None)
    assert "pg_options" in refused(begin, "mooncake-cpu", object())
    short = pg.MooncakeBackendOptions(torch.zeros(1, dtype=torch.int32), False, 2)
    assert "2 elements" in refused(begin, "mooncake-cpu", short)
    assert not dist.is_initialized()
    mask = torch.full((3,), 9, dtype=torch.int32)
    begin("mooncake-cpu", pg.MooncakeBackendOptions(mask, False, 3))
    try:
        assert pg.get_active_ranks(world()) is mask
        assert mask.tolist() == [1, 0, 0]
        with pytest.warns(DeprecationWarning, match="no effect"):
            pg.extend_group_size_to(world(), 3)
        assert "4" in refused(pg.extend_group_size_to, world(), 4)
        assert "3" in refused(pg.get_peer_state, world(), [3])
    finally:
        dist.destroy_process_group()
