"""torch.distributed groups that grow, lose and evict ranks, and ranks that wait to join."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks import Rank, ranks_of
from torch_ranks import dist, in_job, needs_torch, torch, total, until_aborted

import tokenyard

pytestmark = needs_torch


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.01)


def as_older_torch() -> None:
    """Makes torch fix a group's size when the group is made."""
    from tokenyard.torch import build

    if hasattr(build.load(), "resize"):
        del build.load().resize


def everything_has_size_four(rank: int) -> list[int]:
    """Returns results of the default group and of groups made from it, on each of four ranks."""
    assert dist.get_world_size() == dist.group.WORLD.size() == 4
    assert dist.get_rank() == rank
    assert dist.get_process_group_ranks(dist.group.WORLD) == [0, 1, 2, 3]
    gathered = [torch.zeros(2, dtype=torch.int64) for _ in range(4)]
    dist.all_gather(gathered, torch.full((2,), rank))
    assert [part.tolist() for part in gathered] == [[other, other] for other in range(4)]
    into = torch.zeros(4, dtype=torch.int64)
    dist.all_gather_into_tensor(into, torch.tensor([rank]))
    assert into.tolist() == [0, 1, 2, 3]
    objects: list[Any] = [None] * 4
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(4)]
    seen = [total(rank)]
    everybody = dist.new_group([0, 1, 2, 3])
    seen.append(total(10 * rank, everybody))
    pair = dist.new_group([0, 3])
    if rank in (0, 3):
        assert dist.get_world_size(pair) == 2
        seen.append(total(rank + 1, pair))
    dist.barrier()
    return seen


def grow(say: Any, rank: int, size: int, folder: Path, older: bool, by: str) -> list[int]:
    with in_job(rank, size, folder, size_max=4):
        if older:
            as_older_torch()
        before = dist.group.WORLD
        assert total(rank) == 3
        assert dist.get_world_size() == 3
        say("operating")
        if by == "call":
            assert tokenyard.torch.grow(1) is dist.group.WORLD
        else:
            tokenyard.torch.collectives().grow(1)
        if older:
            assert before is not dist.group.WORLD
            with pytest.raises(tokenyard.InvalidArgument, match="4 ranks since the job has grown"):
                dist.all_reduce(torch.ones(1), group=before)
        else:
            assert before is dist.group.WORLD
        return everything_has_size_four(rank)


def newcomer(say: Any, rank: int, folder: Path) -> list[int]:
    with in_job(rank, rank + 1, folder, join=True, size_max=rank + 1):
        return everything_has_size_four(rank)


@pytest.mark.parametrize(("older", "by"), [(False, "job"), (False, "call"), (True, "call")])
def test_torch_follows_a_job_that_grows(tmp_path: Path, older: bool, by: str) -> None:
    with ranks_of(grow, 3, tmp_path, older, by) as ranks:
        for rank in ranks:
            rank.hears("operating")
        fourth = Rank(newcomer, 3, tmp_path)
        try:
            assert [rank.result()[:2] for rank in [*ranks, fourth]] == [[6, 60]] * 4
        finally:
            fourth.end()


def go_on_computing(say: Any, rank: int, size: int, folder: Path) -> list[int]:
    with in_job(rank, size, folder, size_max=4):
        states = tokenyard.torch.peer_states
        assert states() == {0: "active", 1: "active", 2: "active"}
        say("operating")
        # All ranks compute until all see the new process wait.
        sees = 0
        while sees < 3:
            sees = total(int(states().get(3) == "waiting"))
        say("seen")
        tokenyard.torch.grow(1)
        assert states() == dict.fromkeys(range(4), "active")
        pair = dist.new_group([0, 3])  # As the joining rank made it, alone.
        if rank == 0:
            assert total(7, pair) == 14
        assert total(rank) == 6
        if rank == 0:
            tokenyard.torch.evict(1)
        if rank == 1:
            until_fenced(rank)
            return []
        return without_rank_1(rank)


def until_fenced(rank: int) -> None:
    for _ in range(1_000_000):
        try:
            total(rank)
        except tokenyard.Fenced:
            return
    raise AssertionError("nobody put this rank out")


def without_rank_1(rank: int) -> list[int]:
    """The group keeps its ranks' numbers, and the place of the lost rank."""
    assert until_aborted(rank).lost == [1]
    assert tokenyard.torch.collectives().recover() == [0, 2, 3]
    assert tokenyard.torch.peer_states()[1] == "absent"
    assert dist.get_world_size() == 4
    assert dist.get_rank() == rank
    return [total(rank)]


def compute_alone(say: Any, rank: int, folder: Path) -> list[int]:
    with in_job(rank, 4, folder, join=True, alone_first=True, size_max=4):
        assert dist.get_world_size() == 4
        assert total(rank) == 3  # No other rank's.
        pair = dist.new_group([0, 3])
        assert total(7, pair) == 7
        broadcast = torch.full((3,), 5)
        dist.broadcast(broadcast, 3)
        assert tokenyard.torch.peer_states()[0] == "absent"
        say("alone")
        tokenyard.torch.join_group()
        with pytest.raises(tokenyard.InvalidArgument):
            tokenyard.torch.join_group()
        assert dist.get_world_size() == 4
        assert total(7, pair) == 14
        assert total(rank) == 6
        return without_rank_1(rank)


def test_a_joiner_computes_alone_and_a_rank_is_evicted(tmp_path: Path) -> None:
    with ranks_of(go_on_computing, 3, tmp_path) as ranks:
        for rank in ranks:
            rank.hears("operating")
        joiner = Rank(compute_alone, 3, tmp_path)
        try:
            joiner.hears("alone")
            for rank in ranks:
                rank.hears("seen")
            assert [rank.result() for rank in [*ranks, joiner]] == [[5], [], [5], [5]]
        finally:
            joiner.end()


def test_a_group_of_ranks_that_share_a_job_does_not_stay_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tokenyard.torch import Options, backend_state

    job = object()
    attached: list[tuple[object, bool]] = []
    state = backend_state.BackendState(
        None, "second", 0, [0], Options(join=True, alone_first=True), 5.0
    )
    monkeypatch.setattr(backend_state, "job_that_holds", lambda ranks: job)
    monkeypatch.setattr(backend_state, "stay_alone", lambda *options: pytest.fail("it is alone"))
    monkeypatch.setattr(state, "_attach", lambda job, founder: attached.append((job, founder)))
    state.enter()
    assert attached == [(job, False)]
