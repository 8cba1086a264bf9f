"""Dispatch and combine for all ranks at once, as plain NumPy. Written from the documentation of
`ExpertParallel` alone, so that it shares no thought with the kernels it judges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Input:
    """What one rank gives to a dispatch."""

    x: np.ndarray
    topk_idx: np.ndarray
    topk_weights: np.ndarray


@dataclass(frozen=True)
class Expected:
    """What one rank should receive."""

    x: np.ndarray
    topk_idx: np.ndarray
    topk_weights: np.ndarray
    source_token: np.ndarray
    rows_from: list[int]
    tokens_per_expert: list[int]


def here(topk_idx: np.ndarray, rank: int, experts_per_rank: int) -> np.ndarray:
    """[tokens, topk] which choices fall on experts of `rank`; -1 falls on nobody's."""
    first = rank * experts_per_rank
    return (topk_idx >= first) & (topk_idx < first + experts_per_rank)


def dispatched(inputs: list[Input], experts: int) -> list[Expected]:
    """By receiving rank."""
    ranks = len(inputs)
    experts_per_rank = experts // ranks
    expected = []
    for rank in range(ranks):
        parts = []
        for given in inputs:
            mask = here(given.topk_idx, rank, experts_per_rank)
            rows = np.flatnonzero(mask.any(axis=1))
            local = np.where(mask, given.topk_idx - rank * experts_per_rank, -1)
            weights = np.where(mask, given.topk_weights, 0)
            parts.append((given.x[rows], local[rows], weights[rows], rows))
        x, topk_idx, topk_weights, source_token = map(np.concatenate, zip(*parts, strict=True))
        named = [(topk_idx == expert).any(axis=1) for expert in range(experts_per_rank)]
        expected.append(
            Expected(
                x=x,
                topk_idx=topk_idx.astype(np.int32),
                topk_weights=topk_weights.astype(np.float32),
                source_token=source_token.astype(np.int32),
                rows_from=[len(rows) for _, _, _, rows in parts],
                tokens_per_expert=[int(rows.sum()) for rows in named],
            )
        )
    return expected


def combined(
    received: list[Expected], ys: list[np.ndarray], tokens: list[int]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """By owning rank: the sums in float64, and the sums of magnitudes that bound their error."""
    hidden = ys[0].shape[1]
    sums = [np.zeros((count, hidden)) for count in tokens]
    magnitudes = [np.zeros((count, hidden)) for count in tokens]
    for expected, y in zip(received, ys, strict=True):
        begin = 0
        for source, count in enumerate(expected.rows_from):
            rows = slice(begin, begin + count)
            values = y[rows].astype(np.float64)
            # A token comes to a rank at most once, so no index stands twice here.
            sums[source][expected.source_token[rows]] += values
            magnitudes[source][expected.source_token[rows]] += np.abs(values)
            begin += count
    return sums, magnitudes


def weights_home(received: list[Expected], tokens: list[int], topk: int) -> list[np.ndarray]:
    """By owning rank: each choice's weight, from the rank that had its expert; 0 for -1."""
    home = [np.zeros((count, topk), np.float32) for count in tokens]
    for expected in received:
        begin = 0
        for source, count in enumerate(expected.rows_from):
            rows = slice(begin, begin + count)
            home[source][expected.source_token[rows]] += expected.topk_weights[rows]
            begin += count
    return home
