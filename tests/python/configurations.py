"""Random configurations of dispatch and combine, each made from one seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy_reference import Input, experts_of


@dataclass(frozen=True)
class Configuration:
    """One dispatch and combine over all ranks. Its repr tells how to make it again."""

    seed: int
    ranks: int
    experts: int
    hidden: int
    topk: int
    tokens: tuple[int, ...]
    """A rank."""
    ids: str
    """dtype of the expert ids."""
    skew: str
    """"even", "one expert", "one rank" or "crowded": towards the first experts."""
    absent: float
    """Share of choices that are -1."""
    sms: int
    exact: bool
    """Whether y is of small integers, whose sums no rounding touches."""
    weights: bool
    """Whether combine brings weights home."""
    again: bool
    """Whether the route is used for a second dispatch."""
    dtype: str
    """Of x."""
    y_dtype: str
    """Of the results."""
    scales: str
    """dtype of the scales beside the rows, or none."""
    scale_words: int
    by_columns: bool
    """How scales are received."""
    cast: str
    """Rows of a dispatch that casts; empty: as they are."""
    scale_channels: int
    spare: int
    """Places more than rows come, where the host does not wait; -1 where it does."""
    alignment: int
    """Of rows by expert; 0: results are by received row."""
    weighted: bool
    """Whether results by expert are."""
    biases: int
    ordered: bool
    """Whether combine is told in which order to add the ranks."""
    watched: bool
    """Whether dispatches have a watcher."""


def draw(seed: int, ranks: int) -> Configuration:
    """Sizes are small: what differs between sizes is their remainders, not their number."""
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


def _experts(rng: np.random.Generator, ranks: int) -> tuple[int, int]:
    """How many there are, in half of the cases not a multiple of the ranks, sometimes fewer than
    ranks; and how many a token chooses, sometimes more than a warp has lanes."""
    many = rng.random() < 0.1
    experts = int(rng.integers(33, 301)) if many else ranks * int(rng.integers(1, 9))
    if rng.random() < 0.5:
        experts = max(1, experts - int(rng.integers(ranks)))
    most = int(rng.choice([64, 256] if many else [2, 8, 32]))
    return experts, int(rng.integers(1, min(experts, most) + 1))


def _rows(rng: np.random.Generator) -> dict[str, Any]:
    """What is drawn of the rows' formats and layouts."""
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
    """[tokens, topk] experts, none twice in a row."""
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
    """What `rank` gives; x differs from call to call, the choices do not."""
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
        # Any bits at all, NaNs too: dispatch moves them and must not look at them.
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
    """The results that `rank` gives to combine, for the rows it received or for those by expert."""
    rng = np.random.default_rng((given.seed, rank, 3))
    if given.exact:
        # 16 ranks times 8 and two biases of 8 are 144: up to 256 bfloat16 has all integers.
        return rng.integers(-8, 9, (rows, given.hidden)).astype(dtype_of(given.y_dtype))
    scale = np.exp(rng.normal(0, 1 if given.y_dtype == "float16" else 3, (rows, 1)))
    return (rng.standard_normal((rows, given.hidden)) * scale).astype(dtype_of(given.y_dtype))


def order_of(given: Configuration, rank: int) -> np.ndarray | None:
    """[tokens, ranks] the ranks, otherwise mixed for every token; or None."""
    rng = np.random.default_rng((given.seed, rank, 5))
    mixed = rng.random((given.tokens[rank], given.ranks)).argsort(axis=1).astype(np.int32)
    return mixed if given.ordered else None


def biases_of(given: Configuration, rank: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng((given.seed, rank, 4))
    shape = (given.tokens[rank], given.hidden)
    drawn = (rng.integers(-8, 9, shape) for _ in range(given.biases))
    return tuple(bias.astype(dtype_of(given.y_dtype)) for bias in drawn)
