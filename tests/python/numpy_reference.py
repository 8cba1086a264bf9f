"""Dispatch and combine for all ranks at once, in plain NumPy.

Written from the documentation of `ExpertParallel` alone, independently of the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Input:
    """One rank's input to a dispatch."""

    x: np.ndarray
    topk_idx: np.ndarray
    topk_weights: np.ndarray
    scales: np.ndarray | None = None


@dataclass(frozen=True)
class Expected:
    """The rows that one rank should receive."""

    x: np.ndarray
    scales: np.ndarray | None
    topk_idx: np.ndarray
    topk_weights: np.ndarray
    source_token: np.ndarray
    rows_from: list[int]
    tokens_per_expert: list[int]


def experts_of(experts: int, ranks: int) -> list[range]:
    """Returns the experts of each rank: the first experts % ranks ranks hold one more."""
    parts = np.array_split(np.arange(experts), ranks)
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return [range(end - len(part), end) for end, part in zip(ends, parts, strict=True)]


def here(topk_idx: np.ndarray, experts: range) -> np.ndarray:
    """Returns [tokens, topk] which choices are among these experts; -1 never is."""
    return (topk_idx >= experts.start) & (topk_idx < experts.stop)


def dispatched(inputs: list[Input], experts: int) -> list[Expected]:
    """Returns the received rows of each rank."""
    expected = []
    for mine in experts_of(experts, len(inputs)):
        parts = []
        for given in inputs:
            mask = here(given.topk_idx, mine)
            rows = np.flatnonzero(mask.any(axis=1))
            local = np.where(mask, given.topk_idx - mine.start, -1)
            weights = np.where(mask, given.topk_weights, 0)
            parts.append((given.x[rows], local[rows], weights[rows], rows))
        x, topk_idx, topk_weights, source_token = map(np.concatenate, zip(*parts, strict=True))
        beside = [
            given.scales[rows]
            for given, (*_, rows) in zip(inputs, parts, strict=True)
            if given.scales is not None
        ]
        named = [(topk_idx == expert).any(axis=1) for expert in range(len(mine))]
        expected.append(
            Expected(
                x=x,
                scales=np.concatenate(beside) if beside else None,
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
    """Returns, per owning rank, sums in float64, and sums of magnitudes that bound their error."""
    hidden = ys[0].shape[1]
    sums = [np.zeros((count, hidden)) for count in tokens]
    magnitudes = [np.zeros((count, hidden)) for count in tokens]
    for expected, y in zip(received, ys, strict=True):
        begin = 0
        for source, count in enumerate(expected.rows_from):
            rows = slice(begin, begin + count)
            values = y[rows].astype(np.float64)
            # A token goes to a rank at most once, so indices are distinct here.
            sums[source][expected.source_token[rows]] += values
            magnitudes[source][expected.source_token[rows]] += np.abs(values)
            begin += count
    return sums, magnitudes


def combined_between_hosts(
    received: list[Expected],
    ys: list[np.ndarray],
    biases: list[tuple[np.ndarray, ...]],
    tokens: list[int],
    host_of: list[int],
    round_partials: bool,
    orders: list[np.ndarray | None],
) -> list[np.ndarray]:
    """Returns, per owning rank, the very bits of its results: float32 sums in the documented order.

    Another host's results are summed first, in rank order, and rounded if `round_partials`. The
    biases come first, then the ranks in the owner's order: the own host's results one by one, and
    another host's sum for the first of its ranks.
    """
    dtype, hidden = ys[0].dtype, ys[0].shape[1]
    home = []
    for owner, count in enumerate(tokens):
        results = np.zeros((len(received), count, hidden), np.float32)
        has_result = np.zeros((len(received), count), bool)
        for rank, want in enumerate(received):
            begin = sum(want.rows_from[:owner])
            rows = slice(begin, begin + want.rows_from[owner])
            at = want.source_token[rows]
            results[rank, at] = ys[rank][rows].astype(np.float32)
            has_result[rank, at] = True
        # Each rank of another host stands for that host's sum.
        for rank, host in enumerate(host_of):
            if host == host_of[owner] or rank != host_of.index(host):
                continue
            others = [other for other, of in enumerate(host_of) if of == host]
            partial = np.zeros((count, hidden), np.float32)
            for other in others:
                partial[has_result[other]] += results[other, has_result[other]]
            if round_partials:
                partial = partial.astype(dtype).astype(np.float32)
            has_result[others] = has_result[others].any(axis=0)
            results[others] = partial
        total = np.zeros((count, hidden), np.float32)
        for bias in biases[owner]:
            total += bias.astype(np.float32)
        order = orders[owner]
        if order is None:
            order = np.tile(np.arange(len(received)), (count, 1))
        for token in range(count):
            hosts = {host_of[owner]: False}
            for rank in order[token]:
                if hosts.get(host_of[rank]) or not has_result[rank, token]:
                    continue
                hosts.setdefault(host_of[rank], True)
                total[token] += results[rank, token]
        home.append(total.astype(dtype))
    return home


def weights_home(received: list[Expected], tokens: list[int], topk: int) -> list[np.ndarray]:
    """Returns, per owning rank, each choice's weight from its expert's rank; 0 for -1."""
    home = [np.zeros((count, topk), np.float32) for count in tokens]
    for expected in received:
        begin = 0
        for source, count in enumerate(expected.rows_from):
            rows = slice(begin, begin + count)
            home[source][expected.source_token[rows]] += expected.topk_weights[rows]
            begin += count
    return home


def cast(x: np.ndarray, kind: str, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Casts bfloat16 rows to FP8; returns them with float32 scales, or packed exponents."""
    groups = x.astype(np.float32).reshape(len(x), x.shape[1] // channels, channels)
    largest = np.maximum(np.abs(groups).max(axis=2), np.float32(1e-4))
    scale = largest / np.float32(448)
    factor = np.float32(448) / largest
    if kind == "fp8_ue8m0":
        exponents = np.ceil(np.log2(scale.astype(np.float64))).astype(np.int64)
        factor = (1 / np.exp2(exponents)).astype(np.float32)
        padded = np.zeros((len(x), -(-exponents.shape[1] // 4) * 4), np.uint8)
        padded[:, : exponents.shape[1]] = exponents + 127
        scale = padded.view(np.int32)
    values = (groups * factor[:, :, None]).reshape(x.shape)
    return np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn), scale


@dataclass(frozen=True)
class Grouped:
    """A rank's received rows by expert."""

    offsets: list[int]
    row_of: np.ndarray
    """[rows] received row, -1 for padding."""
    weights: np.ndarray
    choice: np.ndarray
    """[rows] index of the row's choice, -1 for padding."""


def grouped(expected: Expected, alignment: int) -> Grouped:
    offsets = [0]
    # A rank may have no experts.
    row_of, choices = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    weights = [np.zeros(0, np.float32)]
    for expert in range(len(expected.tokens_per_expert)):
        rows, choice = np.nonzero(expected.topk_idx == expert)
        padding = -len(rows) % alignment
        row_of.append(np.pad(rows, (0, padding), constant_values=-1))
        choices.append(np.pad(choice, (0, padding), constant_values=-1))
        weights.append(np.pad(expected.topk_weights[rows, choice], (0, padding)))
        offsets.append(offsets[-1] + len(rows) + padding)
    return Grouped(offsets, *map(np.concatenate, (row_of, weights, choices)))


def reduced(expected: Expected, by_expert: Grouped, y: np.ndarray, weighted: bool) -> np.ndarray:
    """Returns [rows received, hidden] float64: the sum of each row's results."""
    sums = np.zeros((len(expected.source_token), y.shape[1]))
    valid = by_expert.row_of >= 0
    factors = by_expert.weights[valid, None] if weighted else 1
    np.add.at(sums, by_expert.row_of[valid], y[valid].astype(np.float64) * factors)
    return sums
