"""Expert maps of both exchanges: places, replicas, lost experts, and ranks that go."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tokenyard

BF16 = ml_dtypes.bfloat16
EXPERT_AT = [0, 1, -1, 2, 0, -1]
"""2 ranks of 3 places for 4 experts: expert 0 has two places, expert 3 none."""
SIZES = dict(experts=4, places_per_rank=3, hidden=32, topk=2, tokens_max=4)
IDS = np.array([[0, 3], [2, 1], [3, -1]])
LOST = [1, 0, 1]


def rows_of(rank: int) -> np.ndarray[Any, Any]:
    return np.full((3, 32), 1 + rank, BF16)


def throughput(world: tokenyard.World) -> None:
    exchange = tokenyard.ExpertParallel(world, **SIZES)
    assert exchange.local_experts == 3
    assert exchange.held_experts == [[0, 1, -1], [2, 3, -1]][world.rank]
    told: list[list[int]] = []
    exchange.on_experts_changed(told.append)
    exchange.set_expert_map(EXPERT_AT)
    assert exchange.expert_map == EXPERT_AT
    assert exchange.lost_experts == [3]
    assert told == ([[2, 0, -1]] if world.rank == 1 else [])
    x = rows_of(world.rank)
    received = exchange.dispatch(x, IDS, np.ones((3, 2), np.float32))
    # Both tokens 0 take a place of expert 0 by their rank's turn: rank 0's the first one.
    assert received.tokens_per_expert == [[1, 2, 0], [2, 1, 0]][world.rank]
    assert received.lost is not None
    assert received.lost.tolist() == LOST
    assert exchange.metrics()["unplaced_choices"] == 2
    home = exchange.combine(received.x, received)
    exchange.wait()
    # Token 1 went to two ranks, token 2 nowhere.
    assert (home == x * np.array([[1], [2], [0]], BF16)).all()
    exchange.set_expert_map([])
    assert exchange.lost_experts == []


def low_latency(world: tokenyard.World) -> None:
    exchange = tokenyard.LowLatency(world, **SIZES)
    assert exchange.local_experts == 3
    told: list[list[int]] = []
    exchange.on_experts_changed(told.append)
    exchange.set_expert_map(EXPERT_AT)
    assert exchange.lost_experts == [3]
    assert told == ([[2, 0, -1]] if world.rank == 1 else [])
    x, halves = rows_of(world.rank), np.full((3, 2), 0.5, np.float32)

    def step() -> tuple[list[list[int]], Any]:
        rows = exchange.dispatch(x, IDS, halves, rows="bf16")
        home = exchange.combine(rows.x, rows)
        exchange.wait()
        found = home.x.astype(np.float32) / x.astype(np.float32)
        return found[:, 0].tolist(), home.lost.tolist()

    assert step() == ([0.5, 1, 0], LOST)
    assert exchange.metrics()["unplaced_choices"] == 2
    assert "unplaced_choices_total" in tokenyard.prometheus_text(exchange.metrics())
    world.barrier()
    if world.rank == 1:
        world.barrier()
        exchange = tokenyard.LowLatency(world, **SIZES)
    else:
        exchange.evict([1])
        assert exchange.expert_map == [0, 1, 2, -1, -1, -1]
        assert told == [[0, 1, 2]]
        assert [masked.why for masked in exchange.failed_ranks()] == ["left out"]
        assert step() == ([0.5, 1, 0], LOST)
        world.barrier()
        before = exchange.unmaskings
        assert exchange.admit() == [1]
        assert exchange.unmaskings == before + 1
        assert told == [[0, 1, 2], [0, 1, -1]]
    assert exchange.expert_map == EXPERT_AT
    assert exchange.failed_ranks() == []
    assert step() == ([0.5, 1, 0], LOST)
    exchange.close()


@pytest.mark.parametrize("program", [throughput, low_latency])
def test_choices_go_where_their_experts_are(program: Any) -> None:
    tokenyard.launch(program, ranks=2)


def test_a_replacement_is_admitted_between_hosts() -> None:
    tokenyard.launch(low_latency, ranks=2, hosts=2, processes=True)


@pytest.mark.parametrize("kind", [tokenyard.ExpertParallel, tokenyard.LowLatency])
def test_maps_that_differ_are_refused_on_all_ranks(kind: Any) -> None:
    def program(world: tokenyard.World) -> tuple[str, int | None]:
        exchange = kind(world, **SIZES)
        mine = EXPERT_AT if world.rank == 0 else EXPERT_AT[::-1]
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            exchange.set_expert_map(mine)
        return caught.value.argument, caught.value.rank

    assert tokenyard.launch(program, ranks=2) == [("expert_at", 1)] * 2


@pytest.mark.parametrize("kind", [tokenyard.ExpertParallel, tokenyard.LowLatency])
def test_places_that_do_not_hold_the_experts_are_refused(kind: Any) -> None:
    def program(world: tokenyard.World) -> str:
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            kind(world, **(SIZES | dict(places_per_rank=1)))
        return caught.value.argument

    assert tokenyard.launch(program, ranks=2) == ["places_per_rank"] * 2
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        kind.memory(**(SIZES | dict(places_per_rank=1)), ranks=2)
    assert caught.value.argument == "places_per_rank"


def test_lost_experts_are_spread_as_far_as_there_are_places() -> None:
    spread = tokenyard.spread_lost_experts
    assert spread(EXPERT_AT, [True, False]) == [0, 1, 2, -1, -1, -1]
    assert spread(EXPERT_AT, [True, True]) == EXPERT_AT
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        spread([0], [])
    assert caught.value.argument == "living"
