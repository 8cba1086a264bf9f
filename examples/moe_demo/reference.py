"""The same layer, dense, in one process: every expert sees every token, and the gate decides how
much of each counts. Shares the weights with the ranks and nothing of how tokens travel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .layer import ExpertWeights, Shape, choose_experts, embed, expert_weights

TOLERANCE = 1.1 * 2.0**-7
"""A rank's part of a sum is rounded to bfloat16, and so is the sum: each time by at most 2^-8 of
the sum of all magnitudes. A tenth is left for float32's own roundings."""


@dataclass(frozen=True)
class Expected:
    """What should come out, and how large the numbers are that it is the sum of."""

    out: np.ndarray
    """[ranks, tokens, hidden] float32."""
    magnitude: np.ndarray
    """The same sums over absolute values."""

    def error(self, rank: int, seen: np.ndarray) -> float:
        """The largest error of a rank's results, as a fraction of the magnitude there."""
        # A magnitude near zero comes of cancellation inside an expert, and errors do not shrink
        # with it: nothing is measured against less than a hundredth of the average.
        magnitude = self.magnitude[rank] + 0.01 * self.magnitude.mean()
        return float((np.abs(seen - self.out[rank]) / magnitude).max())


def dense(shape: Shape, tokens: np.ndarray, advance: Callable[[], None]) -> Expected:
    """[ranks, tokens] words through the layer; calls `advance` after each expert."""
    # Rank by rank, since the first word of each rank's stretch has none before it.
    x = np.concatenate([embed(shape, of_rank) for of_rank in tokens])
    topk_idx, topk_weights = choose_experts(shape, x)
    x = x.astype(np.float32)
    out, magnitude = np.zeros_like(x), np.zeros_like(x)
    for expert in range(shape.experts):
        share = np.where(topk_idx == expert, topk_weights, 0).sum(axis=1, keepdims=True)
        part = share * feed_forward(expert_weights(shape, expert), x)
        out += part
        magnitude += np.abs(part)
        advance()
    result_shape = (*tokens.shape, shape.hidden)
    return Expected(out.reshape(result_shape), magnitude.reshape(result_shape))


def feed_forward(weights: ExpertWeights, x: np.ndarray) -> np.ndarray:
    """[rows, hidden] float32 -> the same."""
    gate = x @ weights.gate
    return (gate / (1 + np.exp(-gate)) * (x @ weights.up)) @ weights.down
