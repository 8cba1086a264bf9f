"""A megakernel in which each rank adds up the numbers of all, wherever these are."""

from __future__ import annotations

import numpy as np

from tokenyard import World
from tokenyard.megakernel import Graph, Megakernel, TensorMemory

COUNT = 700
BYTES = 4 * COUNT


class AllReduce:
    """Each rank copies its numbers to every rank, which adds them up."""

    def __init__(self, world: World) -> None:
        memory = TensorMemory(world)
        numbers, self.numbers = memory.visible(np.zeros(COUNT, np.float32))
        sums, self.sums = memory.visible(np.zeros(COUNT, np.float32))
        pieces = memory.shared(world.size * BYTES)
        self.graph = graph = Graph(world)
        given = graph.tensor("numbers", numbers, BYTES, given=True)
        self.parts = graph.tensor("parts", pieces[world.rank], world.size * BYTES)
        result = graph.tensor("sums", sums, BYTES)
        here, taken = graph.event("all parts"), graph.event("parts taken")
        self.ended = graph.event("end")
        begin, end = world.rank * BYTES, (world.rank + 1) * BYTES
        for to in range(world.size):
            graph.task(
                "copy_to_peer",
                name=f"copy to {to}",
                reads=[given.all()],
                writes=[self.parts.part(begin, end).of(to)],
                waits=[taken.before()],
                signals=[here.on(to)],
                to=pieces[to].at(begin),
                words=COUNT,
                **{"from": numbers},
            )
        graph.task(
            "reduce",
            name="sum",
            reads=[self.parts.all()],
            writes=[result.all()],
            waits=[here],
            signals=[self.ended, *(taken.on(rank) for rank in range(world.size))],
            parts=pieces[world.rank],
            residual=None,
            y=sums,
            part_count=world.size,
            stride=COUNT,
            count=COUNT,
        )


def add_up(world: World) -> list[float]:
    """Runs iterations whose numbers the host sets; returns a sum of each."""
    all_ranks = AllReduce(world)
    all_ranks.graph.loop_on(all_ranks.ended)
    kernel = Megakernel(world, all_ranks.graph)
    kernel.start()
    seen = []
    for step in range(1, 6):
        all_ranks.numbers[:] = step * (world.rank + 1)
        kernel.feed()
        kernel.wait(step)
        assert (all_ranks.sums == all_ranks.sums[0]).all()
        seen.append(float(all_ranks.sums[0]))
    kernel.stop()
    world.barrier()
    return seen
