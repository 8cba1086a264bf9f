"""The program of one rank: the same tokens through experts that move, and experts that stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

import tokenyard
from tokenyard.moe import balance_experts, measured_loads

from .layer import HIDDEN, Shape, dense, tokens_of, weights_of


class Experts:
    """An exchange, and the experts at this rank's places."""

    def __init__(self, world: tokenyard.World, shape: Shape, expert_at: list[int]) -> None:
        self.shape = shape
        self.exchange = tokenyard.ExpertParallel(
            world,
            experts=shape.places,
            hidden=HIDDEN,
            topk=shape.topk,
            tokens_max=shape.tokens,
        )
        self.exchange.set_expert_map(expert_at)
        self.expert_at = expert_at
        self.weights = {e: weights_of(shape, e) for e in self.mine(expert_at) if e >= 0}

    def mine(self, expert_at: list[int]) -> list[int]:
        first = self.exchange.first_expert
        return expert_at[first : first + self.exchange.local_experts]

    def forward(
        self, x: np.ndarray, ids: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, list[int]]:
        """Returns the tokens' results, and the rows at each of this rank's places."""
        received = self.exchange.dispatch(x, ids, weights)
        rows = received.x.astype(np.float32)
        sums = np.zeros(rows.shape, np.float32)
        for place, expert in enumerate(self.mine(self.expert_at)):
            row, choice = np.nonzero(received.topk_idx == place)
            if len(row):
                shares = received.topk_weights[row, choice, None]
                sums[row] += rows[row] @ self.weights[expert] * shares
        home = self.exchange.combine(sums.astype(ml_dtypes.bfloat16), received)
        return home, received.tokens_per_expert

    def move(self, expert_at: list[int]) -> int:
        """Uses another map; returns the number of experts whose weights came from other ranks.

        Each rank offers the experts that others lack. A trainer would send its optimizer's state
        along, by the collectives that it has.
        """
        world, wanted = self.exchange.world, self.mine(expert_at)
        lacking = [expert for expert in wanted if expert >= 0 and expert not in self.weights]
        asked = world.all_gather(np.array(lacking, np.int32).tobytes(), "experts asked for")
        everywhere = {int(e) for each in asked for e in np.frombuffer(each, np.int32)}
        first_holder = self._first_holders()
        offered = sorted(e for e in everywhere if first_holder[e] == world.rank)
        parcel = b"".join(self.weights[expert].tobytes() for expert in offered)
        for rank, came in enumerate(world.all_gather(parcel, "weights of experts")):
            theirs = sorted(e for e in everywhere if first_holder[e] == rank)
            matrices = np.frombuffer(came, np.float32).reshape(len(theirs), HIDDEN, HIDDEN)
            self.weights.update(
                {e: each for e, each in zip(theirs, matrices, strict=True) if e in lacking}
            )
        self.weights = {expert: self.weights[expert] for expert in wanted if expert >= 0}
        self.exchange.set_expert_map(expert_at)
        self.expert_at = expert_at
        return len(lacking)

    def _first_holders(self) -> dict[int, int]:
        holders = np.repeat(
            np.arange(self.shape.ranks), places_of_ranks(self.shape, self.shape.places)
        )
        return {e: int(holders[self.expert_at.index(e)]) for e in {*self.expert_at} if e >= 0}


@dataclass
class RankReport:
    """Results of a rank."""

    staying: list[list[int]] = field(default_factory=list)
    """[steps][experts] rows that it computed for each expert, with experts that stay."""
    moving: list[list[int]] = field(default_factory=list)
    """The same with experts that move."""
    maps: dict[int, list[int]] = field(default_factory=dict)
    """Maps by the first step that used them."""
    moved: int = 0
    """Experts whose weights came to this rank."""
    error: float = 0.0
    """The largest error of either layer's results."""


def run_rank(world: tokenyard.World, shape: Shape, tick: Callable[[], None]) -> RankReport:
    """Runs all steps."""
    report = RankReport()
    plain = map_in_order(shape)
    staying, moving = Experts(world, shape, plain), Experts(world, shape, plain)
    report.maps[0] = plain
    since = np.array(measured_loads(moving.exchange, plain))
    for step in range(shape.steps):
        if step and step % shape.every == 0:
            loads = np.array(measured_loads(moving.exchange, moving.expert_at)) - since
            found = balance_experts(
                loads, places=shape.places, ranks=shape.ranks, before=moving.expert_at
            )
            report.moved += moving.move(found.expert_at)
            report.maps[step] = found.expert_at
            since = np.array(measured_loads(moving.exchange, moving.expert_at))
        given = tokens_of(shape, world.rank, step)
        expected = dense(shape, *given)
        for experts, rows in ((staying, report.staying), (moving, report.moving)):
            home, at_places = experts.forward(*given)
            report.error = max(report.error, float(np.abs(home - expected).max()))
            row = np.zeros(shape.experts, int)
            for expert, count in zip(experts.mine(experts.expert_at), at_places, strict=True):
                row[expert] += count if expert >= 0 else 0
            rows.append(row.tolist())
        tick()
    return report


def places_of_ranks(shape: Shape, number: int) -> list[int]:
    """Returns how many of a number of places each rank has."""
    return [number // shape.ranks + (rank < number % shape.ranks) for rank in range(shape.ranks)]


def map_in_order(shape: Shape) -> list[int]:
    """Returns a map with the experts in order, one place each, and spare places empty."""
    expert_at: list[int] = []
    held = places_of_ranks(shape, shape.experts)
    for rank, room in enumerate(places_of_ranks(shape, shape.places)):
        first = sum(held[:rank])
        expert_at += [*range(first, first + held[rank]), *[-1] * (room - held[rank])]
    return expert_at
