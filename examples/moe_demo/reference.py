"""The same layer, dense, in one process: every expert computes every token, weighted by the gate.

Shares the weights with the ranks, but no communication code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .layer import ExpertWeights, Shape, choose_experts, embed, expert_weights

ROUNDING = 1.1 * 2.0**-8
"""Largest error of a rounding to bfloat16, as a part of the sum of magnitudes; a tenth of it allows
for float32's roundings."""


def tolerance(hosts: int) -> float:
    """Returns the largest error of results, as a part of the sum of magnitudes.

    A rank's part of a sum and the sum are rounded, between hosts also each host's part.
    """
    return (2 if hosts == 1 else 3) * ROUNDING


@dataclass(frozen=True)
class Expected:
    """Expected results, and the magnitudes of their addends."""

    out: np.ndarray
    """[ranks, tokens, hidden] float32."""
    magnitude: np.ndarray
    """The same sums over absolute values."""

    def error(self, rank: int, seen: np.ndarray) -> float:
        """Returns the largest error of a rank's results relative to the magnitude."""
        # A magnitude near zero results from cancellation inside an expert, and errors do not shrink
        # with it: magnitudes count as at least a hundredth of the average.
        magnitude = self.magnitude[rank] + 0.01 * self.magnitude.mean()
        return float((np.abs(seen - self.out[rank]) / magnitude).max())


def dense(shape: Shape, tokens: np.ndarray, advance: Callable[[], None]) -> Expected:
    """Computes the layer for [ranks, tokens] words; calls `advance` after each expert."""
    # Rank by rank, since the first word of each rank has no previous word.
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
    """Returns an expert's output for [rows, hidden] float32, of the same shape."""
    gate = x @ weights.gate
    return (gate / (1 + np.exp(-gate)) * (x @ weights.up)) @ weights.down
