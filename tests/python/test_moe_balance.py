"""Expert maps of measured loads: what always holds, how near the optimum, and a use of one."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from programs import run_python

import tokenyard
from tokenyard.moe import ExpertMap, balance_experts, measured_loads

Sizes = dict[str, Any]


def capacities(places: int, ranks: int) -> list[int]:
    return [places // ranks + (rank < places % ranks) for rank in range(ranks)]


def on_ranks(expert_at: Sequence[int], ranks: int) -> list[list[int]]:
    """Returns each rank's experts."""
    held, first = [], 0
    for room in capacities(len(expert_at), ranks):
        held.append([expert for expert in expert_at[first : first + room] if expert >= 0])
        first += room
    return held


def drawn(rng: np.random.Generator, experts: int) -> Any:
    """Returns loads: even, skewed, whole numbers, many zeros, or all of one expert."""
    kind = rng.integers(5)
    if kind == 0:
        return rng.uniform(0.9, 1.1, experts)
    if kind == 1:
        return 1000 * rng.pareto(1.0, experts)
    if kind == 2:
        return rng.integers(0, 10, experts)
    if kind == 3:
        return np.where(rng.random(experts) < 0.7, 0, rng.integers(1, 100, experts))
    return np.eye(experts)[rng.integers(experts)] * 100


def random_sizes(rng: np.random.Generator) -> tuple[int, Sizes]:
    hosts = int(rng.choice([1, 1, 2, 4]))
    ranks = hosts * int(rng.integers(1, 5))
    groups = hosts * int(rng.integers(1, 4))
    experts = groups * int(rng.integers(1, 6))
    places = ranks * (-(-experts // hosts // (ranks // hosts)) + int(rng.integers(1, 4)))
    if hosts == 1:
        places = int(rng.integers(experts, places + 1))
    given = None if rng.random() < 0.5 else groups
    return experts, dict(places=places, ranks=ranks, hosts=hosts, groups=given)


def check(found: ExpertMap, load: Any, sizes: Sizes) -> None:
    """Checks all that a map promises."""
    experts, ranks = len(load), sizes["ranks"]
    assert len(found.expert_at) == sizes["places"]
    held = on_ranks(found.expert_at, ranks)
    of_expert: list[list[int]] = [[] for _ in range(experts)]
    for rank, each in enumerate(held):
        assert len(set(each)) == len(each), "two places of an expert on a rank"
        for expert in each:
            of_expert[expert].append(rank)
    assert all(of_expert), "an expert without a place"
    assert found.replicas == [len(each) for each in of_expert]
    shares = np.asarray(load, float) / found.replicas
    expected = [sum(shares[expert] for expert in each) for each in held]
    np.testing.assert_allclose(found.rank_loads, expected)
    # All on one host, and groups together.
    ranks_per_host = ranks // sizes["hosts"]
    groups = sizes["groups"] or experts
    for group in range(groups):
        members = range(group * experts // groups, (group + 1) * experts // groups)
        assert len({rank // ranks_per_host for e in members for rank in of_expert[e]}) == 1


@pytest.mark.parametrize("seed", range(60))
def test_what_always_holds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    experts, sizes = random_sizes(rng)
    load = drawn(rng, experts)
    found = balance_experts(load, **sizes)
    check(found, load, sizes)
    assert found == balance_experts(load.tolist(), **sizes)
    again = balance_experts(load, **sizes, before=found.expert_at)
    assert again.expert_at == found.expert_at
    # Twice the load is the same map.
    assert balance_experts(2 * load, **sizes).expert_at == found.expert_at


def least(load: Any, places: int, ranks: int) -> float:
    """Returns the lowest greatest load of a rank, of all maps that there are."""
    experts = range(len(load))
    choices = [
        [some for held in range(room + 1) for some in itertools.combinations(experts, held)]
        for room in capacities(places, ranks)
    ]
    found = np.inf
    for each in itertools.product(*choices):
        count = np.bincount([expert for some in each for expert in some], minlength=len(load))
        if count.all():
            share = load / count
            found = min(found, max(sum(share[expert] for expert in some) for some in each))
    return float(found)


def test_loads_are_near_the_optimum() -> None:
    ratios = []
    for seed in range(120):
        rng = np.random.default_rng(seed)
        ranks, experts = int(rng.integers(2, 4)), int(rng.integers(2, 6))
        places = int(rng.integers(experts, min(experts * ranks, 7) + 1))
        load = drawn(rng, experts)
        optimum = least(load, places, ranks)
        found = max(balance_experts(load, places=places, ranks=ranks).rank_loads)
        assert found >= optimum * (1 - 1e-9)
        if optimum > 0:
            ratios.append(found / optimum)
    assert max(ratios) <= 1.2
    assert np.mean(ratios) <= 1.01
    assert np.mean(np.array(ratios) < 1 + 1e-9) >= 0.9  # Mostly it is the optimum.


@pytest.mark.parametrize(("experts", "places", "ranks"), [(256, 288, 32), (64, 72, 8)])
def test_many_experts_are_balanced_where_no_expert_is_too_hot(
    experts: int, places: int, ranks: int
) -> None:
    for seed in range(3):
        load = np.random.default_rng(seed).lognormal(0, 1, experts)
        assert balance_experts(load, places=places, ranks=ranks).imbalance < 1.03
        # Without replicas, no rank with the hottest expert has less than the coldest beside it.
        plain = balance_experts(load, places=experts, ranks=ranks).imbalance
        hottest = load.max() + np.sort(load)[: experts // ranks - 1].sum()
        assert plain < 1.03 * max(1, hottest / load.sum() * ranks)
        in_order = load.reshape(ranks, -1).sum(1)
        assert plain < in_order.max() / in_order.mean()


def test_an_expert_too_hot_for_a_rank_gets_a_place_on_each() -> None:
    load = [1000, 1, 1, 1, 1, 1, 1, 1]
    found = balance_experts(load, places=12, ranks=4)
    assert found.replicas[0] == 4
    assert found.imbalance < 1.01


def test_places_stay_empty_where_every_expert_is_everywhere() -> None:
    found = balance_experts([3, 2], places=9, ranks=3)
    assert found.expert_at == [0, 1, -1] * 3
    assert found.imbalance == pytest.approx(1)
    assert balance_experts([0, 0], places=2, ranks=2).imbalance == 1


def test_experts_that_stay_on_their_rank_keep_their_places() -> None:
    rng = np.random.default_rng(5)
    load = rng.lognormal(0, 1, 32)
    before = balance_experts(load, places=40, ranks=4).expert_at
    load *= rng.uniform(0.8, 1.25, 32)
    free = balance_experts(load, places=40, ranks=4)
    kept = balance_experts(load, places=40, ranks=4, before=before)
    assert on_ranks(free.expert_at, 4) == [sorted(each) for each in on_ranks(kept.expert_at, 4)]
    held = on_ranks(before, 4)
    for place, expert in enumerate(kept.expert_at):
        if expert in held[place // 10]:
            assert before[place] == expert


@pytest.mark.parametrize(
    ("argument", "load", "wrong"),
    [
        ("loads", [], {}),
        ("loads", [[1, 2]], {}),
        ("loads[1]", [1, -1, 2], {}),
        ("loads[0]", [np.nan, 1], {}),
        ("places", [1, 2, 3], dict(places=2)),
        ("places", [1] * 6, dict(places=6, ranks=4, hosts=2)),
        ("ranks", [1, 2], dict(ranks=0)),
        ("hosts", [1, 2], dict(hosts=3)),
        ("groups", [1, 2], dict(groups=3)),
        ("groups", [1, 2], dict(groups=1, hosts=2)),
        ("before", [1, 2], dict(before=[0, 1])),
    ],
)
def test_wrong_arguments_are_named(argument: str, load: Any, wrong: Sizes) -> None:
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        balance_experts(load, **(dict(places=8, ranks=4) | wrong))
    assert caught.value.argument == argument


def test_a_map_is_used_and_measured() -> None:
    """Loads are measured, the map is set, and the ranks receive what it said; sums are the same."""
    ranks, experts, places, tokens, topk, hidden = 4, 12, 16, 64, 2, 64

    def gate(rank: int) -> tuple[Any, Any, Any]:
        rng = np.random.default_rng(rank)
        odds = 1 / (1 + np.arange(experts)) ** 1.5
        ids = np.stack([rng.choice(experts, topk, False, odds / odds.sum()) for _ in range(tokens)])
        x = rng.integers(-4, 5, (tokens, hidden)).astype(ml_dtypes.bfloat16)
        return x, ids, np.ones(ids.shape, np.float32)

    every_choice = np.concatenate([gate(rank)[1].ravel() for rank in range(ranks)])
    expected = np.bincount(every_choice, minlength=experts).tolist()

    def layer(world: tokenyard.World) -> tuple[list[int], int, int, float]:
        exchange = tokenyard.ExpertParallel(
            world, experts=places, hidden=hidden, topk=topk, tokens_max=tokens
        )
        x, ids, weights = gate(world.rank)

        def step(expert_at: list[int]) -> tuple[Any, int]:
            """Runs experts that multiply by their number; returns the sums and the rows here."""
            received = exchange.dispatch(x, ids, weights)
            first = exchange.first_expert
            numbers = np.array(expert_at[first : first + exchange.local_experts])
            there = received.topk_idx
            factor = np.where(there >= 0, numbers[np.maximum(there, 0)], 0).sum(1)
            y = (received.x.astype(np.float32) * factor[:, None]).astype(ml_dtypes.bfloat16)
            return exchange.combine(y, received), sum(received.tokens_per_expert)

        plain = [*range(experts), *[-1] * (places - experts)]
        exchange.set_expert_map(plain)
        before, rows_before = step(plain)
        loads = measured_loads(exchange, plain)
        found = balance_experts(loads, places=places, ranks=ranks, before=plain)
        exchange.set_expert_map(found.expert_at)
        after, rows_after = step(found.expert_at)
        assert np.allclose(before.astype(float), after.astype(float), rtol=2**-6)
        with pytest.raises(tokenyard.InvalidArgument, match="places"):
            measured_loads(exchange, found.expert_at[:-1])
        return loads, rows_before, rows_after, found.rank_loads[world.rank]

    told = tokenyard.launch(layer, ranks=ranks, arena_bytes=64 << 20)
    assert all(loads == expected for loads, *_ in told)
    mean = sum(expected) / ranks
    assert max(before for _, before, _, _ in told) > 1.5 * mean
    for _, _, after, promised in told:
        # Each rank's tokens take the places of an expert in turn.
        assert abs(after - promised) <= ranks * places / ranks
    assert max(after for _, _, after, _ in told) < 1.15 * mean


def test_it_works_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; import tokenyard.moe as moe;"
        "print(moe.balance_experts([1, 2], places=2, ranks=2).expert_at, 'Dispatched' in dir(moe))"
    )
    done = run_python("-c", program, env={"PYTHONPATH": ":".join(sys.path)})
    assert done.stdout == "[1, 0] True\n", done.stderr
    with pytest.raises(AttributeError, match="'balanced'"):
        _ = tokenyard.moe.balanced  # type: ignore[attr-defined]
