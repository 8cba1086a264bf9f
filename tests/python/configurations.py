"""Random configurations of dispatch and combine, each made from one seed."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy_reference import Input


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


def draw(seed: int, ranks: int) -> Configuration:
    """Sizes are small: what differs between sizes is their remainders, not their number."""
    rng = np.random.default_rng((seed, ranks))
    experts = ranks * int(rng.integers(1, 9))
    most = int(rng.choice([1, 4, 24, 70]))
    tokens = rng.integers(0, most + 1, ranks)
    tokens[rng.random(ranks) < 0.15] = 0
    if rng.random() < 0.04:
        tokens[:] = 0
    return Configuration(
        seed=seed,
        ranks=ranks,
        experts=experts,
        hidden=8 * int(rng.choice([1, 2, 3, 8, 13, 32, 67])),
        topk=int(rng.integers(1, min(experts, int(rng.choice([2, 8, 32]))) + 1)),
        tokens=tuple(int(count) for count in tokens),
        ids=str(rng.choice(["int32", "int64"])),
        skew=str(rng.choice(["even", "even", "crowded", "one rank", "one expert"])),
        absent=float(rng.choice([0, 0, 0.1, 0.7, 1])),
        sms=int(rng.choice([0, 1, 2, 3, 5])),
        exact=bool(rng.random() < 0.5),
        weights=bool(rng.random() < 0.3),
        again=bool(rng.random() < 0.3),
    )


def _choices(given: Configuration, rng: np.random.Generator, tokens: int) -> np.ndarray:
    """[tokens, topk] experts, none twice in a row."""
    odds = rng.random((tokens, given.experts))
    if given.skew == "one expert":
        odds[:, rng.integers(given.experts)] = 2
    elif given.skew == "one rank":
        first = int(rng.integers(given.ranks)) * (given.experts // given.ranks)
        odds[:, first : first + given.experts // given.ranks] += 1
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
    bits = np.random.default_rng((given.seed, rank, 2, call)).integers(
        0, 2**16, (tokens, given.hidden), np.uint16
    )
    return Input(
        # Any 16 bits at all, NaNs too: dispatch moves them and must not look at them.
        x=bits.view(ml_dtypes.bfloat16),
        topk_idx=np.ascontiguousarray(topk_idx.astype(given.ids)),
        topk_weights=topk_weights,
    )


def y_of(given: Configuration, rank: int, rows: int) -> np.ndarray:
    """The results that `rank` gives to combine for the rows it received."""
    rng = np.random.default_rng((given.seed, rank, 3))
    if given.exact:
        # 16 ranks times 16 is 256, the last integer up to which bfloat16 has all of them.
        return rng.integers(-16, 17, (rows, given.hidden)).astype(ml_dtypes.bfloat16)
    scale = np.exp(rng.normal(0, 3, (rows, 1)))
    return (rng.standard_normal((rows, given.hidden)) * scale).astype(ml_dtypes.bfloat16)
