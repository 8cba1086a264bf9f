"""The layer: a gate whose preferences drift, and experts that are matrices, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

HIDDEN = 64
PREFERENCE = 2.5
"""Logits by which the gate prefers the favourite of a step to the least liked expert, halved."""
ROUNDS = 0.5
"""Times that the favourite goes around all experts in a run."""


@dataclass(frozen=True)
class Shape:
    """The options of a run."""

    ranks: int
    experts: int
    places: int
    topk: int
    tokens: int
    """Tokens per rank and step."""
    steps: int
    every: int
    """Steps between two maps."""
    seed: int


def tokens_of(shape: Shape, rank: int, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns a rank's tokens of a step, [tokens, hidden] bfloat16, their experts and weights."""
    rng = np.random.default_rng((shape.seed, rank, step))
    x = rng.standard_normal((shape.tokens, HIDDEN)).astype(ml_dtypes.bfloat16)
    around = np.arange(shape.experts) / shape.experts - ROUNDS * step / shape.steps
    liking = PREFERENCE * np.cos(2 * np.pi * around)
    # Gumbel noise makes the topk a draw without replacement.
    logits = liking + rng.gumbel(size=(shape.tokens, shape.experts))
    ids = np.argsort(-logits, axis=1)[:, : shape.topk]
    ids = np.ascontiguousarray(ids)
    return x, ids, np.full(ids.shape, 1 / shape.topk, np.float32)


@cache
def weights_of(shape: Shape, expert: int) -> np.ndarray:
    """Returns an expert's matrix, [hidden, hidden] float32."""
    rng = np.random.default_rng((shape.seed, 1_000_000 + expert))
    return rng.standard_normal((HIDDEN, HIDDEN), np.float32) / np.float32(HIDDEN**0.5)


def dense(shape: Shape, x: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the layer's results of tokens, computed with all experts in one place."""
    wide = x.astype(np.float32)
    total = np.zeros(x.shape, np.float32)
    for expert in range(shape.experts):
        token, choice = np.nonzero(ids == expert)
        total[token] += wide[token] @ weights_of(shape, expert) * weights[token, choice, None]
    return total
