"""A rank of a megakernel dies, stops or loses a link in the midst of a run, while another thread of
each rank reduces: both calls of the others end with an error that names it. Once the job has
recovered, a new kernel and all_reduce run without it, again at the same time."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from links import Links, links_of_a_test
from ranks import file_store, ranks_of, results
from test_trouble import (
    LOSSES,
    PATIENT_S,
    Ranks,
    fall_soon,
    reduce_until_it_fails,
    shared_files,
)

import tokenyard
from tokenyard.megakernel import Graph, Megakernel

SIZE = 3
NOTHING: dict[str, Any] = dict(parts=None, residual=None, y=None, part_count=0, stride=0, count=0)


def kernel_that_meets(world: tokenyard.World) -> Megakernel:
    """Returns a kernel in each of whose iterations every rank waits for all others."""
    graph = Graph(world)
    met = graph.event("met", count=world.size)
    done = graph.event("done", count=world.size)
    everybody = range(world.size)
    graph.task("reduce", signals=[met.on(rank) for rank in everybody], **NOTHING)
    graph.task("reduce", waits=[met], signals=[done.on(rank) for rank in everybody], **NOTHING)
    graph.loop_on(done)
    return Megakernel(world, graph, workers=1)


def run_for_ever(kernel: Megakernel) -> None:
    while True:
        kernel.run(1000)


def has_recovered(job: tokenyard.Job, size: int) -> bool:
    """Recovers; returns whether a rank is out then."""
    try:
        return len(job.recover()) < size
    except LOSSES:
        return False


def reduce_and_run(job: tokenyard.Job, kernel: Megakernel, size: int) -> None:
    """Reduces in another thread while the kernel runs; both are right."""
    sums: list[float] = []

    def reduce() -> None:
        for _ in range(10):
            ones = np.ones(1000)
            job.collectives().world().all_reduce(ones).wait()
            sums.extend({float(ones.min()), float(ones.max())})

    reducing = threading.Thread(target=reduce)
    reducing.start()
    assert kernel.run(10) == 10
    reducing.join()
    assert sums == [size] * 10


def work(
    say: Any,
    rank: int,
    size: int,
    store: str,
    timeout: float,
    falls: int = -1,
    blow: signal.Signals = signal.SIGKILL,
    links: Links | None = None,
) -> Any:
    if links is not None:
        links.enter()
    ranks = Ranks(rank, size, store, timeout)
    kernel = kernel_that_meets(ranks.world)
    assert kernel.run(10) == 10
    failures: list[Any] = []
    reducing = threading.Thread(target=reduce_until_it_fails, args=(ranks.job, failures))
    reducing.start()
    say("at work")
    if rank == falls:
        fall_soon(blow, 0.1)
    try:
        with pytest.raises((tokenyard.PeerLost, tokenyard.PeerTimeout)) as caught:
            run_for_ever(kernel)
        at = time.monotonic()
        del kernel
        reducing.join()
        deadline = at + PATIENT_S
        while not has_recovered(ranks.job, size):
            assert time.monotonic() < deadline
        # A megakernel counts on every rank.
        world = ranks.job.world(arena_bytes=1 << 24, timeout=timeout, compact=True)
        assert world.size == size - 1
        reduce_and_run(ranks.job, kernel_that_meets(world), size - 1)
        world.barrier("all have run")
        lost: Any = caught.value
        assert [type(error) for error in failures] == [tokenyard.OperationAborted]
        return lost.rank, failures[0].lost, ranks.job.active_ranks()
    except (tokenyard.OutOfTouch, tokenyard.Fenced):
        reducing.join()
        return "out of touch"


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=lambda blow: blow.name)
def test_the_others_run_another_kernel(blow: signal.Signals, tmp_path: Path) -> None:
    falls = 1
    before = shared_files()
    with ranks_of(work, SIZE, file_store(tmp_path), PATIENT_S, falls, blow) as ranks:
        for rank in ranks:
            rank.hears("at work")
        outcomes = results([rank for rank in ranks if rank.number != falls])
        if blow == signal.SIGSTOP:
            ranks[falls].wake()
            assert ranks[falls].result() == "out of touch"
    for named, lost, members in outcomes:
        assert members == [rank for rank in range(SIZE) if rank != falls]
        assert lost == [falls]
        assert named == falls or blow == signal.SIGSTOP  # A stopped one may be waited for by both.
    assert shared_files() <= before


@pytest.mark.parametrize("ways", ["both ways", "one way"])
def test_a_cut_link_ends_the_run(ways: str, tmp_path: Path) -> None:
    """The kernels' memory is not cut: the ranks learn it by silence, and one of the two is out."""
    before = shared_files()
    arguments = (file_store(tmp_path), PATIENT_S, -1, signal.SIGKILL)
    with (
        links_of_a_test() as links,
        ranks_of(work, SIZE, *arguments, links) as ranks,
    ):
        for rank in ranks:
            rank.hears("at work")
        links.cut_between(ranks[1], ranks[2], ways)
        outcomes = results(ranks)
    assert outcomes.count("out of touch") == 1
    out = outcomes.index("out of touch")
    assert out in (1, 2)
    left = [rank for rank in range(SIZE) if rank != out]
    assert [outcomes[rank] for rank in left] == [(out, [out], left)] * 2
    assert shared_files() <= before
