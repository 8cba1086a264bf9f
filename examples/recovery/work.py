"""The work: in each step, tokens pass through experts and update a state that every rank has."""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

import tokenyard

TOPK = 2


@dataclass(frozen=True)
class Work:
    """The work. Its result does not depend on the number of ranks."""

    ranks: int
    """Ranks at the start."""
    steps: int
    tokens: int = 24
    """Tokens per step, which the ranks share."""
    hidden: int = 64

    @property
    def experts(self) -> int:
        """Number of experts, divisible by the number of ranks and by one less."""
        return math.lcm(self.ranks, self.ranks - 1)

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns [tokens, hidden] rows, and [tokens, TOPK] experts and weights.

        The numbers are small, so that sums are exact in any order.
        """
        rng = np.random.default_rng(step)
        rows = rng.integers(-4, 5, (self.tokens, self.hidden)).astype(ml_dtypes.bfloat16)
        first = rng.integers(0, self.experts, self.tokens)
        topk_idx = np.stack([first, (first + 1) % self.experts], 1)
        weights = rng.choice([0.25, 0.5, 1.0], topk_idx.shape).astype(np.float32)
        return rows, topk_idx, weights

    def state(self) -> np.ndarray:
        """Returns the state before the first step."""
        return np.zeros((self.tokens, self.hidden), np.float32)

    def reference(self) -> np.ndarray:
        """Returns the state after the last step, computed in one process."""
        state = self.state()
        for step in range(self.steps):
            rows, topk_idx, weights = self.batch(step)
            factor = (weights * scale_of(topk_idx)).sum(1, keepdims=True)
            state = advance(state, rows.astype(np.float32) * factor)
        return state


def scale_of(expert: np.ndarray) -> np.ndarray:
    """Returns the factor by which an expert multiplies."""
    return (expert % 3 + 1).astype(np.float32)


def advance(state: np.ndarray, sums: np.ndarray) -> np.ndarray:
    return state * np.float32(0.5) + sums


class SharedSteps:
    """Runs steps on one world; a rebuilt world needs a new one."""

    def __init__(self, world: tokenyard.World, work: Work) -> None:
        self._world = world
        self._work = work
        self._mine = np.arange(world.rank, work.tokens, world.size)
        self._exchange = tokenyard.ExpertParallel(
            world,
            experts=work.experts,
            hidden=work.hidden,
            topk=TOPK,
            tokens_max=len(self._mine) + 1,
        )

    def step(self, state: np.ndarray, number: int) -> np.ndarray:
        """Returns the state after a step; `state` is unchanged if a rank is lost meanwhile."""
        rows, topk_idx, weights = (part[self._mine] for part in self._work.batch(number))
        received = self._exchange.dispatch(rows, topk_idx, weights)
        here = received.topk_idx >= 0
        first = self._world.rank * (self._work.experts // self._world.size)
        scales = np.where(here, received.topk_weights * scale_of(received.topk_idx + first), 0)
        y = received.x.astype(np.float32) * scales.sum(1, keepdims=True)
        out = self._exchange.combine(y.astype(ml_dtypes.bfloat16), received)
        sums = np.empty_like(state)
        parts = self._world.all_gather(np.asarray(out, np.float32).tobytes(), "the step's sums")
        for rank, part in enumerate(parts):
            theirs = np.frombuffer(part, np.float32).reshape(-1, self._work.hidden)
            sums[rank :: self._world.size] = theirs
        return advance(state, sums)
