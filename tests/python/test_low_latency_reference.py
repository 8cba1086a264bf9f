"""Random configurations of the low-latency exchange against the reference in NumPy: dispatch bit
for bit, combine bit for bit where its sums are exact, and within two roundings to bfloat16 else, or
within the error of ten-bit logarithms.

There are 2,000; CI runs the first of each world size, `--configurations 2000` runs all."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from low_latency_reference import Given, cast, combined, packed, rows_of

import tokenyard

SHARES = {1: 200, 2: 500, 3: 400, 4: 500, 6: 160, 8: 160, 10: 80}
"""Configurations per number of ranks: 2,000 in all. Beyond 8 ranks kernels use a table of windows.
"""
BATCH = 10
"""Configurations that share a world, and so see the previous one's data in its arena."""


@dataclass(frozen=True)
class Configuration:
    """One exchange of two batches. Its repr is the code that makes it again."""

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
    overlap: bool
    """With hooks, whether the second batch (or combine) is sent before the first is received."""
    sms: int
    combine_sms: int
    exact: bool
    """Whether y consists of small integers and weights are one, so that sums are exact."""
    logfmt: bool
    own_y: bool
    """Whether combine reads the caller's memory instead of the exchange's."""
    spare: int
    """tokens_max minus the largest number of tokens."""
    left_out: int | None
    """The rank that nobody speaks with in the second batch, nor it with anybody. A third one comes
    when masks are cleared."""
    early_weights: tuple[bool, ...]
    """[ranks] whether a rank passes its weights to dispatch instead of combine."""


def draw(seed: int, ranks: int) -> Configuration:
    rng = np.random.default_rng((seed, ranks, 5))
    experts = ranks * int(rng.integers(1, 7))
    tokens = rng.integers(0, int(rng.choice([1, 3, 8, 33])) + 1, ranks)
    rows = str(rng.choice(["bf16", "fp8", "fp8_rounded", "fp8_ue8m0"]))
    hooks = bool(rng.random() < 0.4)
    exact = bool(rng.random() < 0.5)
    overlap = bool(hooks and rng.random() < 0.5)
    leaves = ranks > 1 and not overlap and rng.random() < 0.2
    return Configuration(
        seed=seed,
        ranks=ranks,
        experts=experts,
        hidden=32 * int(rng.choice([1, 1, 3, 4, 9, 17, 20, 90], p=[0.15] * 6 + [0.09, 0.01])),
        topk=int(rng.integers(1, min(experts, int(rng.choice([2, 8, 16]))) + 1)),
        tokens=tuple(int(count) for count in tokens),
        rows=rows,
        given_fp8=bool(rows != "bf16" and rng.random() < 0.3),
        ids=str(rng.choice(["int32", "int64"])),
        absent=float(rng.choice([0, 0.1, 0.6, 1])),
        repeats=bool(rng.random() < 0.15),
        hooks=hooks,
        overlap=overlap,
        sms=int(rng.choice([0, 2, 3, 5])),
        combine_sms=int(rng.choice([0, 2, 3, 5])),
        exact=exact,
        logfmt=bool(not exact and rng.random() < 0.4),
        own_y=bool(rng.random() < 0.5),
        spare=int(rng.choice([0, 0, 1, 30])),
        left_out=int(rng.integers(ranks)) if leaves else None,
        early_weights=tuple(bool(early) for early in rng.random(ranks) < rng.choice([0, 0.5, 1])),
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
    """Returns an expert's result for a token."""
    rng = np.random.default_rng((config.seed, expert, source, token, 9))
    if config.exact:
        return rng.integers(-4, 5, config.hidden).astype(ml_dtypes.bfloat16)
    scale = np.exp(rng.normal(0, 2))
    return (rng.standard_normal(config.hidden) * scale).astype(ml_dtypes.bfloat16)


@dataclass
class Outcome:
    """One rank's results of one batch; arrays are copies."""

    x: np.ndarray
    scales: np.ndarray | None
    counts: np.ndarray
    ranges: np.ndarray
    source_token: np.ndarray
    out: np.ndarray
    lost: np.ndarray


class Batch:
    """One batch of one rank in steps. Every step but `combine` may be a hook."""

    def __init__(
        self, exchange: tokenyard.LowLatency, config: Configuration, number: int, rank: int
    ) -> None:
        self.exchange, self.config, self.number, self.rank = exchange, config, number, rank
        self.given = batch_of(config, number, rank)
        active = active_of(config, number, rank)
        self.active = None if all(active) else active
        mine, early = self.given[rank], config.early_weights[rank]
        self.early, self.late = (mine.topk_weights, None) if early else (None, mine.topk_weights)

    def dispatch(self, rows_total: np.ndarray) -> None:
        config, mine = self.config, self.given[self.rank]
        x, scales = mine.x, None
        if config.given_fp8:
            x, scales = cast(mine.x.astype(np.float32), config.rows)
            if config.rows == "fp8_ue8m0":
                scales = packed(scales)
        self.got = self.exchange.dispatch(
            x,
            mine.topk_idx,
            rows=config.rows,
            scales=scales,
            topk_weights=self.early,
            sms=config.sms,
            active_ranks=self.active,
            return_recv_hook=config.hooks,
            rows_total=rows_total,
        )

    def receive(self) -> None:
        if self.got.hook is not None:
            self.got.hook()
        self.exchange.wait()
        got = self.got
        seen = [got.x, got.scales, got.counts, got.ranges, got.source_token]
        self.copies = [None if array is None else array.copy() for array in seen]

    def combine(self) -> None:
        config, got = self.config, self.got
        y = np.empty(got.x.shape, ml_dtypes.bfloat16)
        if not config.own_y:
            y = self.exchange.combine_buffer(got)
        y[:] = np.nan
        local_experts = config.experts // config.ranks
        for local in range(local_experts):
            expert = self.rank * local_experts + local
            rows = rows_of(self.given, expert)
            for slot, (source, token) in enumerate(zip(rows.source, rows.token, strict=True)):
                y[local, slot] = expert_row(config, expert, int(source), int(token))
        self.home = self.exchange.combine(
            y,
            got,
            self.late,
            use_logfmt=config.logfmt,
            sms=config.combine_sms,
            active_ranks=self.active,
            return_recv_hook=config.hooks,
        )

    def bring_home(self) -> Outcome:
        if self.home.hook is not None:
            self.home.hook()
        self.exchange.wait()
        return Outcome(*self.copies, self.home.x, self.home.lost)


def active_of(config: Configuration, number: int, rank: int) -> list[bool]:
    """Returns the ranks with which a rank exchanges rows in a batch."""
    if number != 1 or config.left_out is None:
        return [True] * config.ranks
    alone = config.left_out
    return [(other == alone) == (rank == alone) for other in range(config.ranks)]


def batch_of(config: Configuration, number: int, rank: int) -> list[Given]:
    """Returns the inputs of all ranks of a batch that reach a rank."""
    batch = [given_of(config, source, number) for source in range(config.ranks)]
    for source, active in enumerate(active_of(config, number, rank)):
        if not active:
            batch[source] = Given(*(array[:0] for array in vars(batch[source]).values()))
    return batch


def batches_of(config: Configuration) -> range:
    return range(2 if config.left_out is None else 3)


def run_one(exchange: tokenyard.LowLatency, config: Configuration, rank: int) -> list[Outcome]:
    world = exchange.world
    batches = [Batch(exchange, config, number, rank) for number in batches_of(config)]
    rows_total = np.zeros(config.experts // config.ranks, np.int32)
    outcomes = []
    if config.overlap:
        one, other = batches
        one.dispatch(rows_total)
        other.dispatch(rows_total)
        one.receive()
        one.combine()
        other.receive()
        other.combine()
        outcomes = [one.bring_home(), other.bring_home()]
    for batch in batches if not config.overlap else []:
        if batch.number == 2:
            world.barrier("nobody calls")
            exchange.clear_mask()
            world.barrier("masks are cleared")
        batch.dispatch(rows_total)
        batch.receive()
        batch.combine()
        outcomes.append(batch.bring_home())
    assert (rows_total == sum(outcome.counts for outcome in outcomes)).all()
    assert exchange.failed_ranks() == []
    return outcomes


def run_batches(world: tokenyard.World, configs: list[Configuration]) -> list[list[Outcome]]:
    outcomes = []
    for config in configs:
        exchange = tokenyard.LowLatency(
            world,
            experts=config.experts,
            hidden=config.hidden,
            topk=config.topk,
            tokens_max=max(1, *config.tokens) + config.spare,
        )
        outcomes.append(run_one(exchange, config, world.rank))
        exchange.close()
    return outcomes


def assert_same(what: str, seen: np.ndarray, expected: np.ndarray) -> None:
    assert seen.shape == expected.shape, what
    same_bytes = seen.view(np.uint8) == expected.astype(seen.dtype).view(np.uint8)
    assert same_bytes.all(), f"{what}: first wrong at {np.argwhere(~same_bytes)[0]}"


def judge_dispatch(
    config: Configuration, batch: list[Given], rank: int, outcome: Outcome
) -> dict[int, dict]:
    """Returns the rows that each expert of the rank should produce."""
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
    # Exponents past the last group are undefined.
    groups = scales.shape[1]
    exponents = np.ascontiguousarray(seen).view(np.uint8)[:groups]
    assert_same(f"{name} scales", exponents, packed(scales)[0].view(np.uint8)[:groups])


def judge(config: Configuration, number: int, outcomes: list[Outcome]) -> None:
    local_experts = config.experts // config.ranks
    made: dict[int, dict] = {}
    batches = [batch_of(config, number, rank) for rank in range(config.ranks)]
    for rank, outcome in enumerate(outcomes):
        made |= judge_dispatch(config, batches[rank], rank, outcome)
    for rank, outcome in enumerate(outcomes):
        active = active_of(config, number, rank)
        given = batches[rank][rank]
        owner = given.topk_idx // local_experts
        lost = (given.topk_idx >= 0) & ~np.array(active)[owner]
        assert_same(f"lost on rank {rank}", outcome.lost, lost.sum(axis=1).astype(np.int32))
        reached = Given(given.x, np.where(lost, -1, given.topk_idx), given.topk_weights)
        batch = [reached if source == rank else each for source, each in enumerate(batches[rank])]
        sums, bounds = combined(batch, rank, local_experts, made, logfmt=config.logfmt)
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
        for index, config in enumerate(configs):
            try:
                for number in batches_of(config):
                    judge(config, number, [outcomes[index][number] for outcomes in by_rank])
            except AssertionError as error:
                error.add_note(f"in {config}")
                raise


def test_there_are_two_thousand_configurations() -> None:
    assert sum(SHARES.values()) == 2000
    assert len({draw(n, ranks) for ranks, count in SHARES.items() for n in range(count)}) == 2000
