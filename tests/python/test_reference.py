"""2,000 random configurations over all options against the reference in NumPy, and 2,000 between
hosts: dispatch bit for bit, combine bit for bit where its sums are exact, and within its roundings
of the float64 sum elsewhere. Between hosts, the bits of all sums are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from configurations import (
    Configuration,
    biases_of,
    draw,
    draw_between_hosts,
    input_of,
    order_of,
    y_of,
)
from numpy_reference import (
    Expected,
    cast,
    combined,
    combined_between_hosts,
    dispatched,
    grouped,
    reduced,
    weights_home,
)

import tokenyard

# Configurations per number of ranks; a world of 16 costs as much as ten of 2.
SHARES = {1: 300, 2: 500, 3: 360, 4: 340, 5: 240, 8: 180, 16: 80}
BETWEEN_HOSTS = {
    (2, 2): 400,
    (2, 3): 150,
    (2, 4): 340,
    (3, 3): 300,
    (3, 4): 100,
    (4, 4): 200,
    (2, 5): 50,
    (2, 6): 160,
    (3, 6): 120,
    (6, 6): 60,
    (2, 8): 60,
    (4, 8): 60,
}
"""Configurations per number of hosts and of ranks. Hosts of two sizes are processes over TCP,
others are threads over a simulated network."""
BATCH = 20
"""Configurations that share a world, and so see the previous one's data in its arena."""
UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
SMALLEST = {"bfloat16": 0.0, "float16": 2.0**-25, "float32": 0.0}
"""Half the distance between subnormal numbers, for results near them."""

BATCHES = [(ranks, first) for ranks, count in SHARES.items() for first in range(0, count, BATCH)]


@dataclass
class Outcome:
    """One rank's results of one configuration; arrays are copies."""

    received: dict[str, np.ndarray]
    counts: tuple[list[int], list[int]]
    again: np.ndarray | None
    by_expert: dict[str, np.ndarray]
    out: np.ndarray
    weights: np.ndarray | None


def run(world: tokenyard.World, given: Configuration, rows: int) -> Outcome:
    """Runs one rank. `rows`: number of rows that it receives."""
    exchange = tokenyard.ExpertParallel(
        world,
        experts=given.experts,
        hidden=given.hidden,
        topk=given.topk,
        tokens_max=max(1, *given.tokens),
        sms=given.sms,
        ring_rows=given.ring_rows,
        chunk_rows=given.chunk_rows,
        fp32_partials=given.fp32_partials,
    )
    mine = input_of(given, world.rank)
    # Grouping by expert requires scales by rows.
    by_columns = given.by_columns and not given.alignment
    how = dict(
        scales_by_columns=by_columns, rows=given.cast or None, scale_channels=given.scale_channels
    )
    places = 0 if given.spare < 0 else max(1, rows + given.spare)
    got = exchange.dispatch(
        mine.x,
        mine.topk_idx,
        mine.topk_weights,
        scales=mine.scales,
        received_tokens_max=places,
        watcher=0 if given.watched else None,
        **how,
    )
    exchange.wait()
    if given.watched:
        assert got.sources_ready.tolist() == [1] * given.ranks
        assert got.experts_ready.tolist() == [1] * exchange.local_experts
    names = ("x", "scales", "topk_idx", "topk_weights", "source_token")
    arrays = {name: getattr(got, name) for name in names}
    received = {name: array.copy() for name, array in arrays.items() if array is not None}
    counts = (got.rows_from_on_device.tolist(), got.tokens_per_expert_on_device.tolist())
    again = None
    if given.again:
        second = input_of(given, world.rank, call=1)
        repeated = exchange.dispatch(second.x, route=got.route, scales=second.scales, **how)
        exchange.wait()
        again = repeated.x[:rows].copy()
    rows_by_expert = None
    by_expert = {}
    results = len(got.x)
    if given.alignment:
        bound = rows * given.topk + given.experts * given.alignment
        rows_by_expert = exchange.group_by_expert(
            got,
            alignment=given.alignment,
            rows_max=bound if places else 0,
            scales_by_columns=given.by_columns,
        )
        exchange.wait()
        names = ("x", "scales", "offsets", "row_of", "weights")
        arrays = {name: getattr(rows_by_expert, name) for name in names}
        by_expert = {name: array.copy() for name, array in arrays.items() if array is not None}
        results = len(rows_by_expert.x)
    y = y_of(given, world.rank, results)
    if given.seed % 2 and not given.alignment:  # Half from the arena, half copied by combine.
        buffer = exchange.combine_buffer(got, given.y_dtype)
        buffer[:] = y
        y = buffer
    home = exchange.combine(
        y,
        got.route,
        got.topk_weights if given.weights else None,
        out=np.empty((given.tokens[world.rank], given.hidden), y.dtype),
        bias=biases_of(given, world.rank),
        rank_order=order_of(given, world.rank),
        by_expert=rows_by_expert,
        weighted=given.weighted and rows_by_expert is not None,
    )
    exchange.wait()
    out, weights = (home.x, home.topk_weights) if given.weights else (home, None)
    exchange.close()
    return Outcome(received, counts, again, by_expert, out, weights)


def run_batch(
    world: tokenyard.World, batch: list[Configuration], rows: list[list[int]]
) -> list[Outcome]:
    outcomes = [run(world, given, rows[i][world.rank]) for i, given in enumerate(batch)]
    world.barrier()
    return outcomes


def travelled(given: Configuration, call: int = 0) -> list[Expected]:
    """Returns inputs per rank, with rows as they are sent, cast if requested."""
    inputs = [input_of(given, rank, call) for rank in range(given.ranks)]
    if given.cast:
        pairs = [cast(mine.x, given.cast, given.scale_channels) for mine in inputs]
        inputs = [
            replace(mine, x=x, scales=scales)
            for mine, (x, scales) in zip(inputs, pairs, strict=True)
        ]
    return dispatched(inputs, given.experts)


def bits(array: np.ndarray) -> np.ndarray:
    """Returns the bits, so that a NaN equals itself, and -0 differs from 0."""
    return np.ascontiguousarray(array).view(np.uint8)


def assert_same(what: str, seen: np.ndarray, expected: np.ndarray) -> None:
    assert seen.shape == expected.shape, what
    assert seen.dtype == expected.dtype, what
    wrong = np.argwhere(bits(seen) != bits(expected))
    assert not len(wrong), f"{what}: first wrong at {wrong[0]}, {len(wrong)} in all"


def judge_received(given: Configuration, rank: int, outcome: Outcome, want: Expected) -> None:
    assert outcome.counts == (want.rows_from, want.tokens_per_expert), f"rank {rank}"
    count = len(want.x)
    names = ["x", "topk_idx", "topk_weights", "source_token"]
    if want.scales is not None:
        names.append("scales")
    for name in names:
        seen = outcome.received[name]
        assert_same(f"{name} on rank {rank}", seen[:count], getattr(want, name))
        if name in ("topk_idx", "source_token"):
            assert (seen[count:] == -1).all(), f"padding of {name} on rank {rank}"


def judge_by_expert(given: Configuration, rank: int, outcome: Outcome, want: Expected) -> None:
    rows = grouped(want, given.alignment)
    count = rows.offsets[-1]
    seen = outcome.by_expert
    assert seen["offsets"].tolist() == rows.offsets
    assert (seen["row_of"][:count] == rows.row_of).all()
    assert (seen["row_of"][count:] == -1).all()
    assert (seen["weights"][:count] == rows.weights).all()
    padding = rows.row_of < 0
    for name, source in (("x", want.x), ("scales", want.scales)):
        if source is None or not len(source):
            continue
        right = source[rows.row_of]
        right = np.ascontiguousarray(right)
        right.view(np.uint8)[padding] = 0
        assert_same(f"{name} by expert on rank {rank}", seen[name][:count], right)


def judge_home(given: Configuration, outcomes: list[Outcome], expected: list[Expected]) -> None:
    partial, sizes = [], []
    for rank, want in enumerate(expected):
        rows = len(want.x) if given.spare < 0 else len(outcomes[rank].received["x"])
        if not given.alignment:
            partial.append(y_of(given, rank, rows)[: len(want.x)].astype(np.float64))
            sizes.append(np.abs(partial[-1]))
            continue
        by_expert = grouped(want, given.alignment)
        y = y_of(given, rank, len(outcomes[rank].by_expert["x"]))[: by_expert.offsets[-1]]
        partial.append(reduced(want, by_expert, y, given.weighted))
        sizes.append(reduced(want, by_expert, np.abs(y), given.weighted))
    sums, _ = combined(expected, partial, list(given.tokens))
    magnitudes, _ = combined(expected, sizes, list(given.tokens))
    dtype = outcomes[0].out.dtype
    if given.hosts > 1 and not given.alignment:
        judge_between_hosts(given, outcomes, expected)
    for rank, outcome in enumerate(outcomes):
        for bias in biases_of(given, rank):
            sums[rank] += bias.astype(np.float64)
            magnitudes[rank] += np.abs(bias.astype(np.float64))
        if given.exact and not given.alignment:
            assert_same(f"out on rank {rank}", outcome.out, (sums[rank] + 0.0).astype(dtype))
            continue
        # Errors of float32 sums, and roundings: one by the owner, and one before if by expert, and
        # one of another host's sums.
        roundings = 2 if given.alignment else 1
        roundings += given.hosts > 1 and not given.fp32_partials
        unit = UNIT_ROUNDOFF[dtype.name]
        added = max(32, given.topk) * 2.0**-24
        bound = unit * np.abs(sums[rank]) + (unit * (roundings - 1) + added) * magnitudes[rank]
        bound = 1.01 * bound + SMALLEST[dtype.name] * 17
        wrong = np.argwhere(~(np.abs(outcome.out.astype(np.float64) - sums[rank]) <= bound))
        assert not len(wrong), f"out on rank {rank}: first wrong at {wrong[0]}"


def judge_between_hosts(
    given: Configuration, outcomes: list[Outcome], expected: list[Expected]
) -> None:
    """Compares results by received row bit for bit, whatever they are."""
    ys = []
    for rank, want in enumerate(expected):
        rows = len(want.x) if given.spare < 0 else len(outcomes[rank].received["x"])
        ys.append(y_of(given, rank, rows)[: len(want.x)])
    right = combined_between_hosts(
        expected,
        ys,
        [biases_of(given, rank) for rank in range(given.ranks)],
        list(given.tokens),
        host_of(given),
        not given.fp32_partials,
        [order_of(given, rank) for rank in range(given.ranks)],
    )
    for rank, outcome in enumerate(outcomes):
        assert_same(f"out on rank {rank}", outcome.out, right[rank])


def judge(given: Configuration, outcomes: list[Outcome]) -> None:
    expected = travelled(given)
    for rank, (outcome, want) in enumerate(zip(outcomes, expected, strict=True)):
        judge_received(given, rank, outcome, want)
        if given.alignment:
            judge_by_expert(given, rank, outcome, want)
    if given.again:
        for rank, want in enumerate(travelled(given, call=1)):
            assert_same(f"x again on rank {rank}", outcomes[rank].again, want.x)
    judge_home(given, outcomes, expected)
    if given.weights:
        for rank, right in enumerate(weights_home(expected, list(given.tokens), given.topk)):
            assert_same(f"weights home on rank {rank}", outcomes[rank].weights, right)


def host_of(given: Configuration) -> list[int]:
    """Returns the hosts of the ranks, as equal parts in order."""
    return [rank * given.hosts // given.ranks for rank in range(given.ranks)]


def check_batch(batch: list[Configuration]) -> None:
    """Runs configurations of the same ranks and hosts in one world, and judges them."""
    rows = [[len(want.x) for want in travelled(given)] for given in batch]
    first = batch[0]
    by_rank = tokenyard.launch(
        run_batch,
        ranks=first.ranks,
        hosts=first.hosts,
        processes=first.ranks % first.hosts != 0,
        timeout=60,
        args=(batch, rows),
    )
    for number, given in enumerate(batch):
        try:
            judge(given, [outcomes[number] for outcomes in by_rank])
        except AssertionError as error:
            error.add_note(f"in {given}")
            raise


@pytest.mark.parametrize(("ranks", "first"), BATCHES)
def test_dispatch_and_combine(ranks: int, first: int, base_seed: int) -> None:
    check_batch([draw(base_seed + first + number, ranks) for number in range(BATCH)])


@pytest.mark.parametrize(("hosts", "ranks"), BETWEEN_HOSTS)
def test_dispatch_and_combine_between_hosts(
    hosts: int, ranks: int, base_seed: int, configurations: int
) -> None:
    share = BETWEEN_HOSTS[hosts, ranks] * configurations // 2000
    for first in range(0, share, BATCH):
        numbers = range(first, min(first + BATCH, share))
        check_batch([draw_between_hosts(base_seed + number, hosts, ranks) for number in numbers])


def test_there_are_two_thousand_configurations() -> None:
    drawn = {draw(1 + first + n, ranks) for ranks, first in BATCHES for n in range(BATCH)}
    assert len(BATCHES) * BATCH == len(drawn) == 2000
    assert sum(BETWEEN_HOSTS.values()) == 2000
