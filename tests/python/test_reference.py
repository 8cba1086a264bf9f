"""1,000 random configurations against the reference in NumPy: dispatch bit for bit, combine bit for
bit where its sums are exact, and within one rounding to bfloat16 of the float64 sum elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from configurations import Configuration, draw, input_of, y_of
from numpy_reference import combined, dispatched, weights_home

import tokenyard

# Ranks and how many configurations of them; a world of 16 costs as much as ten of 2.
SHARES = {1: 150, 2: 250, 3: 180, 4: 170, 5: 120, 8: 90, 16: 40}
BATCH = 10
"""Configurations that share a world, and so meet what the one before left in its arena."""
UNIT_ROUNDOFF = 2.0**-8
"""Of bfloat16, which has 8 significant bits."""

BATCHES = [(ranks, first) for ranks, count in SHARES.items() for first in range(0, count, BATCH)]


@dataclass
class Outcome:
    """What one rank saw of one configuration; arrays are copies."""

    received: list[np.ndarray]
    counts: tuple[list[int], list[int]]
    again: np.ndarray | None
    out: np.ndarray
    weights: np.ndarray | None


def run(world: tokenyard.World, given: Configuration) -> Outcome:
    exchange = tokenyard.ExpertParallel(
        world,
        experts=given.experts,
        hidden=given.hidden,
        topk=given.topk,
        tokens_max=max(1, *given.tokens),
        sms=given.sms,
    )
    mine = input_of(given, world.rank)
    got = exchange.dispatch(mine.x, mine.topk_idx, mine.topk_weights)
    received = [array.copy() for array in (got.x, got.topk_idx, got.topk_weights, got.source_token)]
    again = None
    if given.again:
        repeated = exchange.dispatch(input_of(given, world.rank, call=1).x, route=got.route)
        again = repeated.x.copy()
    y = y_of(given, world.rank, len(got.x))
    if given.seed % 2:  # Half of them from the arena, half copied there by combine.
        buffer = exchange.output_buffer(got.route)
        buffer[:] = y
        y = buffer
    if given.weights:
        home = exchange.combine(y, got.route, got.topk_weights)
        out, weights = home.x, home.topk_weights
    else:
        out, weights = exchange.combine(y, got.route), None
    return Outcome(received, (got.rows_from, got.tokens_per_expert), again, out, weights)


def run_batch(world: tokenyard.World, batch: list[Configuration]) -> list[Outcome]:
    return [run(world, given) for given in batch]


def bits(array: np.ndarray) -> np.ndarray:
    """So that a NaN equals itself, and -0 is not 0."""
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array


def assert_same(what: str, seen: np.ndarray, expected: np.ndarray) -> None:
    assert seen.shape == expected.shape, what
    wrong = np.argwhere(bits(seen) != bits(expected))
    assert not len(wrong), f"{what}: first wrong at {wrong[0]}, {len(wrong)} in all"


def judge(given: Configuration, outcomes: list[Outcome]) -> None:
    inputs = [input_of(given, rank) for rank in range(given.ranks)]
    expected = dispatched(inputs, given.experts)
    for rank, (outcome, want) in enumerate(zip(outcomes, expected, strict=True)):
        assert outcome.counts == (want.rows_from, want.tokens_per_expert), f"rank {rank}"
        wanted = (want.x, want.topk_idx, want.topk_weights, want.source_token)
        names = ("x", "topk_idx", "topk_weights", "source_token")
        for name, seen, right in zip(names, outcome.received, wanted, strict=True):
            assert_same(f"{name} on rank {rank}", seen, right)
    if given.again:
        inputs = [input_of(given, rank, call=1) for rank in range(given.ranks)]
        for rank, want in enumerate(dispatched(inputs, given.experts)):
            assert_same(f"x again on rank {rank}", outcomes[rank].again, want.x)

    ys = [y_of(given, rank, len(want.x)) for rank, want in enumerate(expected)]
    sums, magnitudes = combined(expected, ys, list(given.tokens))
    for rank, outcome in enumerate(outcomes):
        if given.exact:
            right = sums[rank].astype(ml_dtypes.bfloat16)
            assert_same(f"out on rank {rank}", outcome.out, right)
        else:
            # One rounding of the sum, and what float32 loses in adding up.
            bound = UNIT_ROUNDOFF * np.abs(sums[rank]) + 2.0**-19 * magnitudes[rank]
            wrong = np.argwhere(~(np.abs(outcome.out.astype(np.float64) - sums[rank]) <= bound))
            assert not len(wrong), f"out on rank {rank}: first wrong at {wrong[0]}"
    if given.weights:
        for rank, right in enumerate(weights_home(expected, list(given.tokens), given.topk)):
            assert_same(f"weights home on rank {rank}", outcomes[rank].weights, right)


@pytest.mark.parametrize(("ranks", "first"), BATCHES)
def test_dispatch_and_combine(ranks: int, first: int, base_seed: int) -> None:
    batch = [draw(base_seed + first + number, ranks) for number in range(BATCH)]
    by_rank = tokenyard.launch(run_batch, ranks=ranks, args=(batch,))
    for number, given in enumerate(batch):
        try:
            judge(given, [outcomes[number] for outcomes in by_rank])
        except AssertionError as error:
            error.add_note(f"in {given}")
            raise


def test_there_are_a_thousand_configurations() -> None:
    assert len(BATCHES) * BATCH == 1000
    assert (
        len({draw(1 + first + n, ranks) for ranks, first in BATCHES for n in range(BATCH)}) == 1000
    )
