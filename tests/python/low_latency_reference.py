"""Low-latency dispatch and combine for all ranks at once, in plain NumPy.

Written from the documentation of `LowLatency` alone, independently of the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

FP8_LARGEST = np.float32(448)
LEAST = np.float32(1e-4)
"""Lower bound of a group's largest magnitude, for its scale."""
GROUP = 128


@dataclass(frozen=True)
class Given:
    """One rank's input to a batch."""

    x: np.ndarray
    topk_idx: np.ndarray
    topk_weights: np.ndarray


@dataclass(frozen=True)
class Rows:
    """The rows that one expert should receive."""

    source: np.ndarray
    """[rows] source ranks."""
    token: np.ndarray
    """[rows] tokens on the source rank."""


def cast(x: np.ndarray, rows: str) -> tuple[np.ndarray, np.ndarray]:
    """Casts [tokens, hidden] to E4M3; returns it with [tokens, groups] float32 scales."""
    tokens, hidden = x.shape
    groups = -(-hidden // GROUP)
    padded = np.zeros((tokens, groups * GROUP), np.float32)
    padded[:, :hidden] = x
    grouped = padded.reshape(tokens, groups, GROUP)
    largest = np.maximum(np.abs(grouped).max(axis=2), LEAST)
    scales = largest / FP8_LARGEST
    up = FP8_LARGEST / largest
    if rows != "fp8":
        mantissas, exponents = np.frexp(scales)
        exponents -= mantissas == 0.5
        scales = np.ldexp(np.float32(1), exponents)
        up = np.ldexp(np.float32(1), -exponents)
    scaled = np.clip(grouped * up[:, :, None], -FP8_LARGEST, FP8_LARGEST)
    data = scaled.astype(ml_dtypes.float8_e4m3fn).reshape(padded.shape)[:, :hidden]
    return np.ascontiguousarray(data), np.ascontiguousarray(scales.astype(np.float32))


def packed(scales: np.ndarray) -> np.ndarray:
    """Packs [tokens, groups] powers of two to [tokens, words], four exponents per word.

    Exponents of missing groups are zero.
    """
    tokens, groups = scales.shape
    exponents = np.zeros((tokens, -(-groups // 4) * 4), np.uint8)
    exponents[:, :groups] = np.frexp(scales)[1] - 1 + 127
    return exponents.view(np.int32)


def rows_of(batch: list[Given], expert: int) -> Rows:
    """Orders rows by source rank, then token; a token that repeats an expert has one row."""
    sources, tokens = [], []
    for source, given in enumerate(batch):
        for token in np.flatnonzero((given.topk_idx == expert).any(axis=1)):
            sources.append(source)
            tokens.append(token)
    return Rows(np.array(sources, np.int32), np.array(tokens, np.int32))


def smallest(share: np.ndarray) -> np.ndarray:
    """Returns the absolute error of a logarithm, beside its relative one.

    Of 128 channels, those more than 32 octaves below the largest are lost.
    """
    padded = np.pad(np.abs(share), (0, -len(share) % GROUP)).reshape(-1, GROUP)
    return np.repeat(padded.max(axis=1) * 2.0**-32, GROUP)[: len(share)]


def combined(
    batch: list[Given],
    rank: int,
    experts_per_rank: int,
    y_of: dict[int, dict],
    *,
    logfmt: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sums for a rank's tokens in float64, and the bounds of their errors.

    The error is one rounding (or the logarithm) of every other rank's share, one rounding of the
    sum, and float32 in between.

    `y_of[expert][source, token]` is the expert's row for that token.
    """
    given = batch[rank]
    tokens, hidden = given.x.shape
    sums, bounds = np.zeros((tokens, hidden)), np.zeros((tokens, hidden))
    unit = 2.0**-8
    of_a_share = 0.0222 if logfmt else unit
    for token in range(tokens):
        shares: dict[int, np.ndarray] = {}
        magnitude = np.zeros(hidden)
        for expert, weight in zip(given.topk_idx[token], given.topk_weights[token], strict=True):
            if expert < 0:
                continue
            part = float(weight) * y_of[int(expert)][rank, token].astype(np.float64)
            there = int(expert) // experts_per_rank
            shares[there] = shares.get(there, 0) + part
            magnitude += np.abs(part)
        for there, share in shares.items():
            sums[token] += share
            if there != rank:
                bounds[token] += of_a_share * np.abs(share)
                if logfmt:
                    bounds[token] += smallest(share)
        bounds[token] = (
            bounds[token] * (1 + unit) + unit * np.abs(sums[token]) + 2.0**-18 * magnitude
        )
    return sums, bounds
