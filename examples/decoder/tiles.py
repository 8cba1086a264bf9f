"""A task graph whose stages are tiles of rows, and its memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tokenyard.megakernel import Event, Graph, Region, Tensor, TensorMemory
from tokenyard.world import World

UNIT_BYTES = 4096
F32 = 4


class TiledGraph:
    """One rank's graph of tiles."""

    def __init__(self, world: World, *, tiles: int, epsilon: float) -> None:
        self.rank, self.ranks = world.rank, world.size
        self.tiles, self.epsilon = tiles, epsilon
        self.memory = TensorMemory(world)
        self.graph = Graph(world)

    def _given(self, name: str, array: np.ndarray) -> Tensor:
        return self.graph.tensor(name, self.memory.local(array), array.nbytes, given=True)

    def _scratch(self, name: str, words: int) -> Tensor:
        return self.graph.tensor(name, self.memory.local(words * F32), words * F32)

    def _tiles(self, rows: int) -> Iterator[tuple[int, int]]:
        """Yields (first, count) of parts of rows, about as many as there are tiles."""
        step = max(1, -(-rows // self.tiles))
        for first in range(0, rows, step):
            yield first, min(step, rows - first)

    def _linear(
        self,
        name: str,
        weights: np.ndarray,
        x: Tensor,
        y: Tensor,
        ready: Event,
        *,
        norm: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Event:
        """Adds tasks for y = residual + weights . norm(x), in tiles of rows."""
        done = self.graph.event(name)
        rows, columns = weights.shape
        matrix = self._given(f"{name} weights", weights)
        for first, count in self._tiles(rows):
            mine = slice_of(y, first, count)
            reads = [x.all()] + ([norm.all()] if norm else [])
            self.graph.task(
                "linear",
                name=f"{name} {first}",
                reads=reads + ([slice_of(residual, first, count)] if residual else []),
                writes=[mine],
                streams=[matrix.part(first * columns * 2, (first + count) * columns * 2)],
                waits=[ready],
                signals=[done],
                cost_ns=1000 + count * columns // 16,
                weights=matrix.piece.at(first * columns * 2),
                x=x.piece,
                norm=norm.piece if norm else None,
                residual=residual.piece.at(first * F32) if residual else None,
                y=y.piece.at(first * F32),
                rows=count,
                columns=columns,
                unit_bytes=UNIT_BYTES,
                epsilon=self.epsilon,
            )
        return done

    def _to_every_rank(
        self, name: str, own: Tensor, words: int, ready: Event
    ) -> tuple[Tensor, Event]:
        """Copies a tensor to every rank; returns all ranks' copies, and the event of arrival."""
        pieces = self.memory.shared(self.ranks * words * F32)
        parts = self.graph.tensor(f"{name} parts", pieces[self.rank], self.ranks * words * F32)
        arrived = self.graph.event(f"{name} arrived")
        source: dict[str, Any] = {"from": own.piece}  # No name for a keyword.
        for rank in range(self.ranks):
            self.graph.task(
                "copy_to_peer",
                name=f"{name} to rank {rank}",
                reads=[own.all()],
                writes=[slice_of(parts, self.rank * words, words).of(rank)],
                waits=[ready],
                signals=[arrived.on(rank)],
                **source,
                to=pieces[rank].at(self.rank * words * F32),
                words=words,
            )
        return parts, arrived


def slice_of(tensor: Tensor, first: int, count: int) -> Region:
    """Returns the region of some words of a tensor."""
    return tensor.part(first * F32, (first + count) * F32)
