"""A mixture-of-experts layer in NumPy, with all ranks' tokens: what frameworks have to compute.

Expert e turns a row's elements by e places and multiplies them by its gain. Nothing here is shared
with the library: the tests of vLLM's, SGLang's and Megatron's calls compare with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

GAINS = (1.0, -2.0, 0.5, 3.0, -1.0)
BLOCK = 128
"""Channels per scale of FP8 rows."""


@dataclass(frozen=True)
class Layer:
    """The sizes of a layer, and the tokens that each rank routes."""

    ranks: int = 3
    experts: int = 12
    topk: int = 4
    hidden: int = 256
    tokens: tuple[int, ...] = (30, 15, 0)
    """Tokens per rank."""
    seed: int = 0
    holes: float = 0.0
    """Share of choices that are -1."""

    @property
    def local(self) -> int:
        return self.experts // self.ranks

    def given(self, rank: int) -> tuple[Any, Any, Any]:
        """Returns a rank's tokens (of bfloat16's values), ids and weights."""
        rng = np.random.default_rng([self.seed, rank])
        tokens = self.tokens[rank]
        x = rng.standard_normal((tokens, self.hidden)).astype(ml_dtypes.bfloat16)
        ids = rng.random((tokens, self.experts)).argsort(1)[:, : self.topk]
        weights = rng.uniform(0.2, 1.0, ids.shape).astype(np.float32)
        ids = np.where(rng.random(ids.shape) < self.holes, -1, ids)
        return x.astype(np.float32), ids.astype(np.int64), weights

    def routing(self, rank: int) -> tuple[Any, Any]:
        """Returns the same choices as Megatron has them: [tokens, experts] bool and float32."""
        _, ids, weights = self.given(rank)
        chosen = np.zeros((len(ids), self.experts), bool)
        table = np.zeros(chosen.shape, np.float32)
        for token, choice in np.argwhere(ids >= 0):
            chosen[token, ids[token, choice]] = True
            table[token, ids[token, choice]] = weights[token, choice]
        return chosen, table

    def expert(self, number: int, rows: Any) -> Any:
        """Returns an expert's results."""
        return np.roll(rows, number, axis=1) * GAINS[number % len(GAINS)]

    def gradients(self, rank: int, of_results: Any) -> tuple[Any, Any]:
        """Returns gradients of a rank's tokens, and of its weights as [tokens, experts].

        Args:
            of_results: [tokens, hidden] those of its results.
        """
        x, ids, weights = self.given(rank)
        of_tokens = np.zeros(x.shape)
        of_weights = np.zeros((len(x), self.experts))
        for token, choice in np.argwhere(ids >= 0):
            number = ids[token, choice]
            row = of_results[token : token + 1].astype(np.float64)
            back = np.roll(row, -number, axis=1) * GAINS[number % len(GAINS)]
            of_tokens[token] += weights[token, choice] * back[0]
            one = self.expert(number, x[token : token + 1].astype(np.float64))
            of_weights[token, number] = (one * row).sum()
        return of_tokens, of_weights

    def result(self, rank: int, rows: Any = None) -> tuple[Any, Any]:
        """Returns a rank's results, and the sums of the magnitudes that they are summed of.

        Args:
            rows: the tokens as experts see them, if not as given.
        """
        x, ids, weights = self.given(rank)
        x = x if rows is None else rows
        total, magnitude = np.zeros(x.shape), np.zeros(x.shape)
        for token, choice in np.argwhere(ids >= 0):
            one = self.expert(ids[token, choice], x[token : token + 1].astype(np.float64))[0]
            total[token] += weights[token, choice] * one
            magnitude[token] += np.abs(weights[token, choice] * one)
        return total, magnitude

    def arriving(self, rank: int) -> tuple[Any, Any, Any]:
        """Returns rows that a rank receives, local ids (-1 for others') and weights, by source."""
        rows, where, shares = [], [], []
        for source in range(self.ranks):
            x, ids, weights = self.given(source)
            for token in range(len(x)):
                mine = (ids[token] >= 0) & (ids[token] // self.local == rank)
                if mine.any():
                    rows.append(x[token])
                    where.append(np.where(mine, ids[token] - rank * self.local, -1))
                    shares.append(np.where(mine, weights[token], 0))
        shape = (0, self.hidden), (0, self.topk), (0, self.topk)
        return tuple(  # type: ignore[return-value]
            np.stack(part) if part else np.zeros(empty)
            for part, empty in zip((rows, where, shares), shape, strict=True)
        )

    def per_expert(self, rank: int) -> list[int]:
        """Returns the rows of each of a rank's experts."""
        ids = self.arriving(rank)[1]
        return [int((ids == expert).sum()) for expert in range(self.local)]

    def by_expert(self, rank: int, multiple: int = 1) -> tuple[Any, Any, list[int]]:
        """Returns rows grouped by expert and their weights, padded with zeros, and the counts."""
        x, ids, weights = self.arriving(rank)
        rows, shares, counts = [], [], []
        for expert in range(self.local):
            which, choice = np.nonzero(ids == expert)
            padding = -len(which) % multiple
            rows.append(np.pad(x[which], ((0, padding), (0, 0))))
            shares.append(np.pad(weights[which, choice], (0, padding)))
            counts.append(len(which) + padding)
        return np.concatenate(rows), np.concatenate(shares), counts


def quantized(rows: Any, powers_of_two: bool = False) -> tuple[Any, Any, Any]:
    """Returns E4M3 codes, scales per block and the values that these stand for."""
    blocks = rows.reshape(len(rows), rows.shape[1] // BLOCK, BLOCK).astype(np.float32)
    largest = np.maximum(np.abs(blocks).max(2, keepdims=True), np.float32(1e-4))
    scales = largest / np.float32(448)
    if powers_of_two:
        scales = np.exp2(np.ceil(np.log2(scales)))
    codes = (blocks / scales).astype(ml_dtypes.float8_e4m3fn)
    values = (codes.astype(np.float32) * scales).reshape(rows.shape)
    return codes.reshape(rows.shape), scales[:, :, 0].astype(np.float32), values


def assert_sums(seen: Any, expected: tuple[Any, Any], tolerance: float = 3 * 2**-8) -> None:
    """Checks BF16 results that were rounded by the expert, on its rank and at home."""
    total, magnitude = expected
    assert seen.shape == total.shape
    error = np.abs(np.asarray(seen, np.float64) - total)
    assert (error <= tolerance * magnitude + 1e-6).all(), (error / (magnitude + 1e-6)).max()
