"""Megakernels whose ranks are on several hosts: processes over TCP that count as such."""

from __future__ import annotations

import numpy as np
import pytest
from megakernel_programs import AllReduce, add_up

import tokenyard
from tokenyard import World
from tokenyard.megakernel import InvalidGraph, Megakernel, TensorMemory


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
