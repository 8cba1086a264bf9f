"""Random configurations of the low-latency exchange against the reference in NumPy: dispatch bit
for bit, combine bit for bit where its sums are exact, and within two roundings to bfloat16 else.

There are 2,000; CI runs the first of each world size, `--configurations 2000` runs all."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from low_latency_reference import Given, cast, combined, packed, rows_of

import tokenyard

SHARES = {1: 200, 2: 500, 3: 400, 4: 500, 6: 160, 8: 160, 10: 80}
"""Configurations of each number of ranks: 2,000 in all. Of more than 8 ranks kernels look up where
they are."""
BATCH = 10
"""Configurations that share a world, and so meet what the one before left in its arena."""


@dataclass(frozen=True)
class Configuration:
    """One exchange of two batches. Its repr tells how to make it again."""

    seed: int
    ranks: int
    experts: int
    hidden: int
    topk: int
    tokens: tuple[int, ...]
    rows: str
    given_fp8: bool
    ids: str
    absent: float
    """Share of choices that are -1."""
    repeats: bool
    """Whether a token may name an expert twice."""
    hooks: bool
    sms: int
    exact: bool
    """Whether y is of small integers and weights are one: no rounding touches the sums."""


def draw(seed: int, ranks: int) -> Configuration:
    rng = np.random.default_rng((seed, ranks, 5))
    experts = ranks * int(rng.integers(1, 7))
    tokens = rng.integers(0, int(rng.choice([1, 3, 8, 33])) + 1, ranks)
    rows = str(rng.choice(["bf16", "fp8", "fp8_rounded", "fp8_ue8m0"]))
    return Configuration(
        seed=seed,
        ranks=ranks,
        experts=experts,
        hidden=32 * int(rng.choice([1, 1, 3, 4, 9, 17, 20])),
        topk=int(rng.integers(1, min(experts, int(rng.choice([2, 8, 16]))) + 1)),
        tokens=tuple(int(count) for count in tokens),
        rows=rows,
        given_fp8=bool(rows != "bf16" and rng.random() < 0.3),
        ids=str(rng.choice(["int32", "int64"])),
        absent=float(rng.choice([0, 0.1, 0.6, 1])),
        repeats=bool(rng.random() < 0.15),
        hooks=bool(rng.random() < 0.4),
        sms=int(rng.choice([0, 2, 3, 5])),
        exact=bool(rng.random() < 0.5),
    )


def given_of(config: Configuration, rank: int, batch: int) -> Given:
    rng = np.random.default_rng((config.seed, rank, batch))
    shape = (config.tokens[rank], config.topk)
    if config.repeats:
        idx = rng.integers(0, config.experts, shape)
    else:
        odds = rng.random((shape[0], config.experts))
        idx = np.argsort(odds, axis=1)[:, : config.topk]
    idx = np.where(rng.random(shape) < config.absent, -1, idx)
    spread = np.exp(rng.normal(0, 4, (shape[0], 1)))
    x = (rng.standard_normal((shape[0], config.hidden)) * spread).astype(ml_dtypes.bfloat16)
    weights = np.ones(shape, np.float32) if config.exact else rng.random(shape, np.float32)
    return Given(x, np.ascontiguousarray(idx.astype(config.ids)), weights)


def expert_row(config: Configuration, expert: int, source: int, token: int) -> np.ndarray:
    """What an expert makes of a token."""
    rng = np.random.default_rng((config.seed, expert, source, token, 9))
    if config.exact:
        return rng.integers(-4, 5, config.hidden).astype(ml_dtypes.bfloat16)
    scale = np.exp(rng.normal(0, 2))
    return (rng.standard_normal(config.hidden) * scale).astype(ml_dtypes.bfloat16)


@dataclass
class Outcome:
    """What one rank saw of one batch; arrays are copies."""

    x: np.ndarray
    scales: np.ndarray | None
    counts: np.ndarray
    ranges: np.ndarray
    source_token: np.ndarray
    out: np.ndarray
    lost: np.ndarray


def run_one(
    exchange: tokenyard.LowLatency, config: Configuration, batch: list[Given], rank: int
) -> Outcome:
    mine = batch[rank]
    x, scales = mine.x, None
    if config.given_fp8:
        x, scales = cast(mine.x.astype(np.float32), config.rows)
        if config.rows == "fp8_ue8m0":
            scales = packed(scales)
    got = exchange.dispatch(
        x,
        mine.topk_idx,
        rows=config.rows,
        scales=scales,
        sms=config.sms,
        return_recv_hook=config.hooks,
    )
    if got.hook is not None:
        got.hook()
    exchange.wait()
    seen = [got.x, got.scales, got.counts, got.ranges, got.source_token]
    copies = [None if array is None else array.copy() for array in seen]
    y = exchange.combine_buffer(got)
    y[:] = np.nan
    local_experts = config.experts // config.ranks
    for local in range(local_experts):
        expert = rank * local_experts + local
        rows = rows_of(batch, expert)
        for slot, (source, token) in enumerate(zip(rows.source, rows.token, strict=True)):
            y[local, slot] = expert_row(config, expert, int(source), int(token))
    home = exchange.combine(y, mine.topk_weights, got, return_recv_hook=config.hooks)
    if home.hook is not None:
        home.hook()
    exchange.wait()
    return Outcome(*copies, home.x, home.lost)


def run_batches(world: tokenyard.World, configs: list[Configuration]) -> list[list[Outcome]]:
    outcomes = []
    for config in configs:
        exchange = tokenyard.LowLatency(
            world,
            experts=config.experts,
            hidden=config.hidden,
            topk=config.topk,
            tokens_max=max(1, *config.tokens),
        )
        batches = [[given_of(config, r, number) for r in range(config.ranks)] for number in (0, 1)]
        outcomes.append([run_one(exchange, config, batch, world.rank) for batch in batches])
        assert exchange.masked() == []
        exchange.close()
    return outcomes


def assert_same(what: str, seen: np.ndarray, expected: np.ndarray) -> None:
    assert seen.shape == expected.shape, what
    same_bytes = seen.view(np.uint8) == expected.astype(seen.dtype).view(np.uint8)
    assert same_bytes.all(), f"{what}: first wrong at {np.argwhere(~same_bytes)[0]}"


def judge_dispatch(
    config: Configuration, batch: list[Given], rank: int, outcome: Outcome
) -> dict[int, dict]:
    """The rows that each expert of the rank should have made."""
    local_experts = config.experts // config.ranks
    made = {}
    for local in range(local_experts):
        expert = rank * local_experts + local
        rows = rows_of(batch, expert)
        count = len(rows.token)
        assert outcome.counts[local] == count
        starts = np.searchsorted(rows.source, np.arange(config.ranks))
        ends = np.searchsorted(rows.source, np.arange(config.ranks), side="right")
        assert_same("ranges", outcome.ranges[local], np.stack([starts, ends - starts], 1))
        assert_same("source_token", outcome.source_token[local, :count], rows.token)
        made[expert] = {}
        for slot, (source, token) in enumerate(zip(rows.source, rows.token, strict=True)):
            name = f"expert {expert} slot {slot} on rank {rank}"
            x = batch[source].x[token : token + 1]
            if config.rows == "bf16":
                assert_same(name, outcome.x[local, slot], x[0])
            else:
                data, scales = cast(x.astype(np.float32), config.rows)
                assert_same(name, outcome.x[local, slot], data[0])
                judge_scales(config, name, outcome.scales[local, slot], scales)
            made[expert][int(source), int(token)] = expert_row(
                config, expert, int(source), int(token)
            )
    return made


def judge_scales(config: Configuration, name: str, seen: np.ndarray, scales: np.ndarray) -> None:
    if config.rows != "fp8_ue8m0":
        assert_same(f"{name} scales", np.ascontiguousarray(seen), scales[0])
        return
    # Exponents past the last group mean nothing.
    groups = scales.shape[1]
    exponents = np.ascontiguousarray(seen).view(np.uint8)[:groups]
    assert_same(f"{name} scales", exponents, packed(scales)[0].view(np.uint8)[:groups])


def judge(config: Configuration, batch: list[Given], outcomes: list[Outcome]) -> None:
    local_experts = config.experts // config.ranks
    made: dict[int, dict] = {}
    for rank, outcome in enumerate(outcomes):
        made |= judge_dispatch(config, batch, rank, outcome)
    for rank, outcome in enumerate(outcomes):
        assert not outcome.lost.any()
        sums, bounds = combined(batch, rank, local_experts, made)
        if config.exact:
            assert_same(f"out on rank {rank}", outcome.out, sums.astype(ml_dtypes.bfloat16))
        wrong = np.argwhere(~(np.abs(outcome.out.astype(np.float64) - sums) <= bounds))
        assert not len(wrong), f"out on rank {rank}: first wrong at {wrong[0]}"


@pytest.mark.parametrize("ranks", SHARES)
def test_batches(ranks: int, base_seed: int, configurations: int) -> None:
    count = max(1, SHARES[ranks] * configurations // sum(SHARES.values()))
    for first in range(0, count, BATCH):
        configs = [draw(base_seed + n, ranks) for n in range(first, min(first + BATCH, count))]
        by_rank = tokenyard.launch(run_batches, ranks=ranks, args=(configs,))
        for number, config in enumerate(configs):
            try:
                for batch in (0, 1):
                    given = [given_of(config, rank, batch) for rank in range(ranks)]
                    judge(config, given, [outcomes[number][batch] for outcomes in by_rank])
            except AssertionError as error:
                error.add_note(f"in {config}")
                raise


def test_there_are_two_thousand_configurations() -> None:
    assert sum(SHARES.values()) == 2000
    assert len({draw(n, ranks) for ranks, count in SHARES.items() for n in range(count)}) == 2000
