"""Random configurations of dispatch and combine, each made from one seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy_reference import Input, experts_of


@dataclass(frozen=True)
class Configuration:
    """One dispatch and combine over all ranks. Its repr is the code that makes it again."""

    seed: int
    ranks: int
    experts: int
    hidden: int
    topk: int
    tokens: tuple[int, ...]
    """Tokens per rank."""
    ids: str
    """dtype of the expert ids."""
    skew: str
    """"even", "one expert", "one rank" or "crowded": towards the first experts."""
    absent: float
    """Share of choices that are -1."""
    sms: int
    exact: bool
    """Whether y consists of small integers, whose sums are exact."""
    weights: bool
    """Whether combine returns weights."""
    again: bool
    """Whether the route is used for a second dispatch."""
    dtype: str
    """dtype of x."""
    y_dtype: str
    """dtype of the results."""
    scales: str
    """dtype of the scales beside the rows, or none."""
    scale_words: int
    by_columns: bool
    """Layout of received scales."""
    cast: str
    """`rows` of a dispatch that casts; empty: none."""
    scale_channels: int
    spare: int
    """Places beyond the received rows, if the host does not wait; -1 if it does."""
    alignment: int
    """Alignment of rows by expert; 0: results are by received row."""
    weighted: bool
    """Whether combine weights results by expert."""
    biases: int
    ordered: bool
    """Whether combine gets an order of the ranks."""
    watched: bool
    """Whether dispatches have a watcher."""
    hosts: int = 1
    ring_rows: int = 0
    chunk_rows: int = 0
    fp32_partials: bool = False


def draw(seed: int, ranks: int) -> Configuration:
    """Draws a configuration. Sizes are small: their remainders matter, not their magnitude."""
    rng = np.random.default_rng((seed, ranks))
    experts, topk = _experts(rng, ranks)
    most = int(rng.choice([1, 4, 24, 70]))
    tokens = rng.integers(0, most + 1, ranks)
    tokens[rng.random(ranks) < 0.15] = 0
    if rng.random() < 0.04:
        tokens[:] = 0
    return Configuration(
        seed=seed,
        ranks=ranks,
        experts=experts,
        hidden=32 * int(rng.choice([1, 1, 2, 3, 5, 8, 17])),
        topk=topk,
        tokens=tuple(int(count) for count in tokens),
        ids=str(rng.choice(["int32", "int64"])),
        skew=str(rng.choice(["even", "even", "crowded", "one rank", "one expert"])),
        absent=float(rng.choice([0, 0, 0.1, 0.7, 1])),
        sms=int(rng.choice([0, 1, 2, 3, 5])),
        exact=bool(rng.random() < 0.5),
        weights=bool(rng.random() < 0.3),
        again=bool(rng.random() < 0.3),
        **_rows(rng),
    )


def draw_between_hosts(seed: int, hosts: int, ranks: int) -> Configuration:
    """Draws a configuration over several hosts."""
    rng = np.random.default_rng((seed, hosts, ranks, 6))
    return replace(
        draw(seed, ranks),
        hosts=hosts,
        ring_rows=int(rng.choice([0, 3, 5, 9, 40])),
        chunk_rows=int(rng.choice([0, 0, 1, 3, 9])),
        fp32_partials=bool(rng.random() < 0.3),
    )


def _experts(rng: np.random.Generator, ranks: int) -> tuple[int, int]:
    """Draws the numbers of experts and of choices per token.

    Half of the numbers of experts are not a multiple of the ranks, some are below it; sometimes a
    token has more choices than a warp has lanes.
    """
    many = rng.random() < 0.1
    experts = int(rng.integers(33, 301)) if many else ranks * int(rng.integers(1, 9))
    if rng.random() < 0.5:
        experts = max(1, experts - int(rng.integers(ranks)))
    most = int(rng.choice([64, 256] if many else [2, 8, 32]))
    return experts, int(rng.integers(1, min(experts, most) + 1))


def _rows(rng: np.random.Generator) -> dict[str, Any]:
    """Draws the rows' formats and layouts."""
    cast = str(rng.choice(["", "", "", "", "fp8", "fp8_ue8m0"]))
    scales = "" if cast else str(rng.choice(["", "", "float32", "int32", "uint8"]))
    dtypes = ["bfloat16", "bfloat16", "float16", "float32", "float8_e4m3fn", "uint8"]
    return dict(
        dtype="bfloat16" if cast else str(rng.choice(dtypes)),
        y_dtype=str(rng.choice(["bfloat16", "bfloat16", "float16", "float32"])),
        scales=scales,
        scale_words=int(rng.choice([1, 3, 4, 8, 13])),
        by_columns=bool(rng.random() < 0.4) and scales != "uint8",
        cast=cast,
        scale_channels=int(rng.choice([16, 32])),
        spare=int(rng.choice([-1, -1, -1, 0, 5])),
        alignment=int(rng.choice([0, 0, 0, 1, 8, 32])),
        weighted=bool(rng.random() < 0.5),
        biases=int(rng.choice([0, 0, 0, 1, 2])),
        ordered=bool(rng.random() < 0.3),
        watched=bool(rng.random() < 0.2),
    )


def _choices(given: Configuration, rng: np.random.Generator, tokens: int) -> np.ndarray:
    """Draws [tokens, topk] experts, distinct within a row."""
    odds = rng.random((tokens, given.experts))
    if given.skew == "one expert":
        odds[:, rng.integers(given.experts)] = 2
    elif given.skew == "one rank":
        mine = experts_of(given.experts, given.ranks)[rng.integers(given.ranks)]
        odds[:, mine.start : mine.stop] += 1
    elif given.skew == "crowded":
        odds /= 1 + np.arange(given.experts)
    chosen = np.argsort(-odds, axis=1)[:, : given.topk]
    return np.where(rng.random(chosen.shape) < given.absent, -1, chosen)


def input_of(given: Configuration, rank: int, call: int = 0) -> Input:
    """Returns the input of `rank`; x differs between calls, the choices do not."""
    rng = np.random.default_rng((given.seed, rank, 1))
    tokens = given.tokens[rank]
    topk_idx = _choices(given, rng, tokens)
    topk_weights = rng.random((tokens, given.topk), np.float32)
    rng = np.random.default_rng((given.seed, rank, 2, call))
    if given.cast:
        scale = np.exp(rng.normal(0, 3, (tokens, 1)))
        x = (rng.standard_normal((tokens, given.hidden)) * scale).astype(ml_dtypes.bfloat16)
    else:
        dtype = dtype_of(given.dtype)
        bits = rng.integers(0, 256, (tokens, given.hidden * dtype.itemsize), np.uint8)
        # Any bits, NaNs included: dispatch moves them unseen.
        x = bits.view(dtype)
    scales = None
    if given.scales:
        bits = rng.integers(0, 256, (tokens, given.scale_words * 4), np.uint8)
        scales = bits.view(given.scales)
    return Input(
        x=x,
        topk_idx=np.ascontiguousarray(topk_idx.astype(given.ids)),
        topk_weights=topk_weights,
        scales=scales,
    )


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def y_of(given: Configuration, rank: int, rows: int) -> np.ndarray:
    """Returns the results that `rank` passes to combine, by received row or by expert."""
    rng = np.random.default_rng((given.seed, rank, 3))
    if given.exact:
        # At most 16 ranks * 8 + two biases of 8 = 144: bfloat16 represents all integers up to 256.
        return rng.integers(-8, 9, (rows, given.hidden)).astype(dtype_of(given.y_dtype))
    scale = np.exp(rng.normal(0, 1 if given.y_dtype == "float16" else 3, (rows, 1)))
    return (rng.standard_normal((rows, given.hidden)) * scale).astype(dtype_of(given.y_dtype))


def order_of(given: Configuration, rank: int) -> np.ndarray | None:
    """Returns [tokens, ranks] a random order of ranks per token, or None."""
    rng = np.random.default_rng((given.seed, rank, 5))
    mixed = rng.random((given.tokens[rank], given.ranks)).argsort(axis=1).astype(np.int32)
    return mixed if given.ordered else None


def biases_of(given: Configuration, rank: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng((given.seed, rank, 4))
    shape = (given.tokens[rank], given.hidden)
    drawn = (rng.integers(-8, 9, shape) for _ in range(given.biases))
    return tuple(bias.astype(dtype_of(given.y_dtype)) for bias in drawn)
