"""Megakernels whose ranks are on several hosts: processes over TCP that count as such."""

from __future__ import annotations

import numpy as np
import pytest

import tokenyard
from tokenyard import World
from tokenyard.megakernel import Graph, InvalidGraph, Megakernel, TensorMemory

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


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 2), (3, 2)])
def test_ranks_of_two_hosts_add_up_their_numbers(ranks: int, hosts: int) -> None:
    seen = tokenyard.launch(
        add_up, ranks=ranks, processes=True, hosts=hosts, arena_bytes=1 << 20, timeout=60
    )
    of_ranks = ranks * (ranks + 1) / 2
    assert seen == [[step * of_ranks for step in range(1, 6)]] * ranks


def read_from_afar(world: World) -> str:
    """Returns the error of a graph whose task reads memory of another host."""
    all_ranks = AllReduce(world)
    far = all_ranks.parts.part(0, 4).of(1 - world.rank)
    memory = TensorMemory(world)
    number = memory.local(np.zeros(1, np.float32))
    own = all_ranks.graph.tensor("number", number, 4)
    all_ranks.graph.task(
        "reduce",
        name="afar",
        reads=[far],
        writes=[own.all()],
        parts=number,
        residual=None,
        y=number,
        part_count=1,
        stride=1,
        count=1,
    )
    with pytest.raises(InvalidGraph) as caught:
        Megakernel(world, all_ranks.graph)
    return f"{caught.value.fault}: {caught.value}"


def test_a_task_cannot_read_memory_of_another_host() -> None:
    for text in tokenyard.launch(
        read_from_afar, ranks=2, processes=True, hosts=2, arena_bytes=1 << 20, timeout=60
    ):
        assert text.startswith("between hosts: ")
        assert "'afar' of rank 0" in text
