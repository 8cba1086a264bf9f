"""The program of one rank: dispatches its words, runs its experts, combines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tokenyard

from .compute import Compute, GpuCompute, HostCompute
from .layer import Shape, choose_experts, embed, expert_weights

STEPS = 8
"""Number of batches in which a rank's words go through the layer, as in training."""


@dataclass
class Span:
    """A phase of one step, in seconds of the machine's monotonic clock."""

    phase: str
    step: int
    begin_s: float
    end_s: float


@dataclass
class RankReport:
    """Results of a rank."""

    out: np.ndarray
    """[tokens, hidden] float32."""
    chosen: np.ndarray
    """[tokens, topk] experts of each token."""
    rows_from: np.ndarray
    """[ranks] number of rows received from each rank."""
    host_of: list[int]
    """[ranks] host of each rank."""
    network_bytes: list[int] = field(default_factory=list)
    """[ranks] bytes that this rank has sent to each rank over a network."""
    spans: list[Span] = field(default_factory=list)

    @contextmanager
    def timed(self, phase: str, step: int, compute: Compute) -> Iterator[None]:
        begin = time.monotonic()
        yield
        compute.finish()
        self.spans.append(Span(phase, step, begin, time.monotonic()))


class Experts:
    """The experts of this rank."""

    def __init__(self, shape: Shape, rank: int, compute: Compute) -> None:
        self._compute = compute
        first = rank * shape.experts_per_rank
        self._weights = []
        for expert in range(first, first + shape.experts_per_rank):
            weights = expert_weights(shape, expert)
            parts = (weights.gate, weights.up, weights.down)
            self._weights.append([compute.array(part) for part in parts])

    def apply(self, received: tokenyard.Received[Any], y: Any) -> None:
        """Writes to `y`, for each received row, the weighted sum of this rank's experts."""
        compute = self._compute
        x = compute.float32(received.x)
        total = x * 0
        for expert, (gate, up, down) in enumerate(self._weights):
            here = received.topk_idx == expert
            rows = compute.rows(here.any(1))
            share = (received.topk_weights * here).sum(1)[rows]
            inner = compute.silu(x[rows] @ gate) * (x[rows] @ up)
            total[rows] += share[:, None] * (inner @ down)
        compute.store(y, total)


def run_rank(
    world: tokenyard.World, shape: Shape, tokens: np.ndarray, advance: Callable[[], None]
) -> RankReport:
    """Runs one rank. `tokens`: [ranks, tokens] of all ranks."""
    compute = GpuCompute(world.device_index) if world.device_index is not None else HostCompute()
    experts = Experts(shape, world.rank, compute)
    x = embed(shape, tokens[world.rank])
    batches = np.array_split(np.arange(shape.tokens), STEPS)
    exchange = tokenyard.ExpertParallel(
        world,
        experts=shape.experts,
        hidden=shape.hidden,
        topk=shape.topk,
        tokens_max=max(len(batch) for batch in batches),
    )
    report = RankReport(
        out=np.zeros((shape.tokens, shape.hidden), np.float32),
        chosen=np.zeros((shape.tokens, shape.topk), np.int64),
        rows_from=np.zeros(shape.ranks, np.int64),
        host_of=list(world.topology.host_of),
    )
    world.barrier("demo: all ranks have their weights")
    for step, batch in enumerate(batches):
        with report.timed("gate", step, compute):
            topk_idx, topk_weights = choose_experts(shape, x[batch])
            inputs = [compute.array(part) for part in (x[batch], topk_idx, topk_weights)]
        with report.timed("dispatch", step, compute):
            received = exchange.dispatch(*inputs)
        with report.timed("experts", step, compute):
            y = exchange.combine_buffer(received)  # Combine reads it in place.
            experts.apply(received, y)
        with report.timed("combine", step, compute):
            out = exchange.combine(y, received)
        report.out[batch] = compute.to_host(out)
        report.chosen[batch] = topk_idx
        report.rows_from += received.rows_from
        advance()
    report.network_bytes = world.network_metrics()["sent_bytes_by_peer"]
    world.barrier("demo: no rank of another host waits for this one")
    return report
