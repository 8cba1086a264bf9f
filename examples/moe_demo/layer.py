"""The layer: embedding, gate and experts, drawn from a seed.

So every rank and the reference make the same numbers without communication.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Shape:
    """The options of a run."""

    ranks: int
    experts: int
    topk: int
    hidden: int
    tokens: int
    """Tokens per rank."""
    words: int
    seed: int

    @property
    def experts_per_rank(self) -> int:
        return self.experts // self.ranks

    @property
    def inner(self) -> int:
        """Inner elements of an expert's feed-forward."""
        return 2 * self.hidden


@dataclass(frozen=True)
class ExpertWeights:
    """A SwiGLU feed-forward: down(silu(gate(x)) * up(x))."""

    gate: np.ndarray
    up: np.ndarray
    down: np.ndarray


def _generator(shape: Shape, *place: int) -> np.random.Generator:
    return np.random.default_rng((shape.seed, *place))


def embed(shape: Shape, tokens: np.ndarray) -> np.ndarray:
    """Returns [tokens, hidden] bfloat16 embeddings of [tokens].

    A word's embedding also depends on the previous word, so the same word may choose other experts
    elsewhere.
    """
    table = _generator(shape, 0).standard_normal((shape.words, shape.hidden), np.float32)
    before = np.concatenate([tokens[:1], tokens[:-1]])
    x = table[tokens] + 0.5 * table[before]
    x /= np.sqrt((x * x).mean(axis=1, keepdims=True))
    return x.astype(ml_dtypes.bfloat16)


def choose_experts(shape: Shape, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Applies the gate to [tokens, hidden]: softmax, the topk best experts, weights of sum 1.

    Returns:
        [tokens, topk] int64 experts, and [tokens, topk] float32 weights.
    """
    projection = _generator(shape, 1).standard_normal((shape.hidden, shape.experts), np.float32)
    logits = x.astype(np.float32) @ projection * np.float32(1.5 / np.sqrt(shape.hidden))
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = odds / odds.sum(axis=1, keepdims=True)
    topk_idx = np.argsort(-probabilities, axis=1, kind="stable")[:, : shape.topk]
    topk_weights = np.take_along_axis(probabilities, topk_idx, axis=1)
    topk_weights /= topk_weights.sum(axis=1, keepdims=True)
    return np.ascontiguousarray(topk_idx), np.ascontiguousarray(topk_weights)


def expert_weights(shape: Shape, expert: int) -> ExpertWeights:
    """Returns the weights of one expert; a rank makes only its own."""
    generator = _generator(shape, 2, expert)
    inwards = (shape.hidden, shape.inner)
    return ExpertWeights(
        gate=generator.standard_normal(inwards, np.float32) / np.float32(np.sqrt(shape.hidden)),
        up=generator.standard_normal(inwards, np.float32) / np.float32(np.sqrt(shape.hidden)),
        down=generator.standard_normal(inwards[::-1], np.float32)
        / np.float32(np.sqrt(shape.inner)),
    )
