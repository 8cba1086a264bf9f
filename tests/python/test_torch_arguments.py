"""Numbers from torch are checked for sign and range before any byte moves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from ranks import results_of
from torch_ranks import dist, in_job, needs_torch, torch, total

import tokenyard

pytestmark = needs_torch


def in_group(say: Any, rank: int, size: int, folder: Path, body: Callable[[int, int], Any]) -> Any:
    with in_job(rank, size, folder):
        result = body(rank, size)
        dist.barrier()
        return result


def refused(argument: str, value: Any, call: Callable[[], Any]) -> None:
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        call()
    assert caught.value.argument == argument, str(caught.value)
    assert str(value) in caught.value.seen, str(caught.value)


def splits(rank: int, size: int) -> None:
    """Two negative splits once ended both processes with "free(): invalid pointer"."""
    into, given = torch.zeros(2), torch.arange(2.0)
    wrong = [-1, 3] if rank == 0 else [3, -1]

    def exchange(outs: list[int] | None, ins: list[int] | None) -> Callable[[], Any]:
        return lambda: dist.all_to_all_single(into, given, outs, ins)

    refused("input_split_sizes[0]", wrong[0], exchange(wrong, wrong))
    refused("output_split_sizes[1]", -1, exchange([2, -1], [1, 1]))
    refused("output_split_sizes[0]", 2**62, exchange([2**62, 2**62], [1, 1]))
    refused("input_split_sizes", [1, 0], exchange([1, 1], [1, 0]))
    refused("input_split_sizes", 3, exchange([1, 1], [1, 1, 0]))
    assert into.tolist() == [0, 0]
    exchange([1, 1], [1, 1])()
    assert into.tolist() == [rank, rank]


def splits_of_one_rank(rank: int, size: int) -> str:
    """The others learn which rank they wait for; the group continues once it has called."""
    into, given = torch.zeros(4), torch.arange(4.0) + 10 * rank
    late = dist.new_group(timeout=timedelta(seconds=5))
    said = ""
    if rank == 0:
        with pytest.raises(tokenyard.InvalidArgument, match="split_sizes"):
            dist.all_to_all_single(into, given, [2, 2], [-2, 6], group=late)
    else:
        with pytest.raises(tokenyard.PeerTimeout) as caught:
            dist.all_to_all_single(into, given, [2, 2], [2, 2], group=late)
        assert caught.value.rank == 0
        said = str(caught.value)
    dist.barrier()
    return said


def ranks_and_tags(rank: int, size: int) -> None:
    group, one = dist.group.WORLD, torch.zeros(1)
    other = 1 - rank
    refused("dst", -1, lambda: group.send([one], -1, 0))
    refused("src", -2, lambda: group.recv([one], -2, 0))
    refused("tag", -5, lambda: group.send([one], other, -5))
    refused("tag", -5, lambda: group.recv([one], other, -5))
    refused("tag", -7, lambda: group.recv_anysource([one], -7))
    options = dist.distributed_c10d
    broadcast = options.BroadcastOptions()
    broadcast.rootRank = -1
    refused("root", -1, lambda: group.broadcast([one], broadcast))
    broadcast.rootRank, broadcast.rootTensor = 0, 1
    refused("rootTensor", 1, lambda: group.broadcast([one], broadcast))
    gather = options.GatherOptions()
    gather.rootRank = -3
    refused("root", -3, lambda: group.gather([], [one], gather))
    gather.rootRank = 2**31 - 1
    refused("root", 2**31 - 1, lambda: group.gather([], [one], gather))
    backend = group._get_backend(torch.device("cpu"))
    for excluded in (-1, size):
        refused("ranks_to_exclude", excluded, lambda gone=excluded: backend.shrink([gone], 0))
    for member in (-1, size):
        with pytest.raises((tokenyard.InvalidArgument, ValueError, RuntimeError)):
            dist.split_group(split_ranks=[[rank, member]])
    assert total(rank) == 1


def timeouts(rank: int, size: int) -> None:
    group, one = dist.group.WORLD, torch.zeros(1)
    for wrong in (timedelta(seconds=-3), timedelta(0), timedelta(days=100_000)):
        options = dist.AllreduceOptions()
        options.timeout = wrong
        refused("timeout", "", lambda options=options: group.allreduce([one], options))
    with pytest.raises(tokenyard.InvalidArgument, match="timeout"):
        tokenyard.torch.monitored_barrier(timeout=timedelta(seconds=-3))
    work = dist.all_reduce(one, async_op=True)
    refused("timeout", -3000, lambda: work.wait(timedelta(seconds=-3)))
    assert work.wait(timedelta(days=100_000))
    with pytest.raises(tokenyard.InvalidArgument, match="timeout"):
        dist.new_group(timeout=timedelta(days=30_000))


def waits_of_a_caller(rank: int, size: int) -> None:
    """A wait that is shorter than the operation's deadline ends as every wait does."""
    left, right = (rank - 1) % size, (rank + 1) % size
    got = torch.empty(3)
    receive = dist.irecv(got, left)
    with pytest.raises(tokenyard.PeerTimeout, match="timed out") as caught:
        receive.wait(timedelta(milliseconds=50))
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.rank == left
    assert caught.value.phase == "tokenyard:recv"
    assert caught.value.waited_s >= 0.05
    dist.barrier()
    dist.send(torch.full((3,), float(rank)), right)
    receive.wait()
    assert (got == left).all()
    if rank == 0:
        work = dist.all_reduce(got, async_op=True)
        with pytest.raises(tokenyard.PeerTimeout, match="all_reduce timed out"):
            work.wait(timedelta(milliseconds=50))
        dist.send(torch.ones(1), right, tag=1)
        work.wait()
    else:
        if rank == 1:
            dist.recv(torch.ones(1), 0, tag=1)
        dist.all_reduce(got)
    assert (got == sum(range(size))).all()


@pytest.mark.parametrize("body", [splits, ranks_and_tags, timeouts, waits_of_a_caller])
def test_between_two(tmp_path: Path, body: Callable[[int, int], Any]) -> None:
    results_of(in_group, 2, tmp_path, body)


def test_whom_a_refusal_keeps_waiting_is_told_by_whom(tmp_path: Path) -> None:
    said = results_of(in_group, 2, tmp_path, splits_of_one_rank)[1]
    assert "rank 0 has not begun it" in said
    assert "all_to_all" in said
