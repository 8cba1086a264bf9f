"""Objects made on a World may be used by one thread at a time, in one process: other callers get an
error, and neither crash nor wait for threads that their process lacks."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from programs import run_python
from ranks import file_store
from test_collectives import connect

import tokenyard
from tokenyard.megakernel import Graph, Megakernel, TensorMemory

TIMEOUT_S = 60
FORKS_LIFE_S = 600


def make(world: tokenyard.World, hidden: int = 8) -> tokenyard.ExpertParallel:
    return tokenyard.ExpertParallel(world, experts=4, hidden=hidden, topk=1, tokens_max=4)


def dispatch(exchange: tokenyard.ExpertParallel) -> tokenyard.Received:
    x = np.ones((2, exchange.hidden), ml_dtypes.bfloat16)
    return exchange.dispatch(x, np.zeros((2, 1), np.int64), np.ones((2, 1), np.float32))


def make_kernel(world: tokenyard.World) -> Megakernel:
    graph = Graph(world)
    graph.task("reduce", parts=None, residual=None, y=None, part_count=0, stride=0, count=0)
    return Megakernel(world, graph, workers=1)


def calls_of_graphs(world: tokenyard.World) -> list[Callable[[], object]]:
    """Returns calls that may wait or change graphs and their memory.

    A kernel's feed is missing: it may be called while another thread waits.
    """
    kernel, memory = make_kernel(world), TensorMemory(world)
    piece, _ = memory.visible(np.zeros(8, np.uint8))
    return [
        lambda: kernel.run(1),
        kernel.start,
        lambda: kernel.wait(1),
        kernel.stop,
        kernel.trace,
        kernel.traces,
        lambda: make_kernel(world),
        lambda: memory.local(8),
        lambda: memory.visible(np.zeros(8, np.uint8)),
        lambda: memory.shared(8),
        lambda: memory.write(piece, np.zeros(8, np.uint8)),
        lambda: memory.read(piece, np.uint8, 8),
        lambda: TensorMemory(world),
    ]


def test_a_second_thread_is_told_that_another_is_in_a_call() -> None:
    told = threading.Event()

    def layer(world: tokenyard.World) -> list[str]:
        first, second = make(world), make(world, hidden=16)
        of_graphs = calls_of_graphs(world)
        world.barrier()
        if world.rank == 1:
            assert told.wait(TIMEOUT_S)
            dispatch(first)
            return []
        other = threading.Thread(target=dispatch, args=(first,))
        other.start()  # It waits for rank 1.
        while not refusal_of(second.wait):  # Until it is there; by itself this returns at once.
            time.sleep(0.01)
        calls = [lambda: dispatch(second), lambda: world.barrier("beside it"), lambda: make(world)]
        refused = [refusal_of(call) for call in calls + of_graphs]
        told.set()
        other.join(TIMEOUT_S)
        assert not other.is_alive()
        return refused

    sentences = tokenyard.launch(layer, ranks=2, timeout=TIMEOUT_S)[0]
    assert len(sentences) == 3 + 13
    for sentence in sentences:
        assert "another thread" in sentence


def refusal_of(call: Callable[[], object]) -> str:
    try:
        call()
    except tokenyard.InvalidArgument as error:
        return str(error)
    return ""


def ends_of(child: int) -> int | None:
    """Returns its exit status; None if it had to be killed."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def fork_in_the_middle(world: tokenyard.World) -> tuple[int | None, float]:
    exchange = make(world)
    received = dispatch(exchange)
    calls = [lambda: dispatch(exchange), world.barrier, lambda: make(world)]
    calls += [*calls_of_graphs(world), make_kernel(world).feed]
    child = os.fork()
    if child == 0:
        refused = 0
        try:
            refused = sum("fork" in refusal_of(call) for call in calls)
            assert (world.rank, world.size, refused) == (world.rank, 2, len(calls))
            del received, exchange, calls
            world.close()
        finally:
            os._exit(7 if refused == 3 + 14 else 1)
    status = ends_of(child)
    # The fork must not destroy the parent's objects.
    world.barrier()
    home = exchange.combine(received.x, received.route)
    return status, float(dispatch(exchange).x.sum() + home.sum())


def test_a_fork_leaves_a_world_alone() -> None:
    results = tokenyard.launch(fork_in_the_middle, ranks=2, processes=True, timeout=TIMEOUT_S)
    assert [status for status, _ in results] == [7, 7]


def test_a_fork_leaves_collectives_alone(tmp_path: Path) -> None:
    with connect(0, 1, file_store(tmp_path)) as job:
        work = job.world().barrier()
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (job.active_ranks, job.world, work.wait):
                try:
                    call()
                except tokenyard.InvalidArgument as error:
                    refused += "fork" in str(error)
            del work
            job.close()
            os._exit(refused)
        assert ends_of(child) == 3
        job.world().barrier().wait()


def leave_a_fork_behind(world: tokenyard.World, folder: str) -> None:
    if world.rank == 1:
        child = os.fork()
        if child == 0:
            time.sleep(FORKS_LIFE_S)
            os._exit(0)
        Path(folder, "fork").write_text(str(child))
        os._exit(5)
    world.barrier("for a rank whose fork keeps its pipe and its connections open")


def test_a_rank_that_ends_is_named_while_its_fork_lives(tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(tokenyard.ProcessDied, match="rank 1 exited with 5"):
        tokenyard.launch(
            leave_a_fork_behind, ranks=2, processes=True, timeout=300, args=(str(tmp_path),)
        )
    assert time.monotonic() - begin < 120  # Neither the deadline nor the end of the fork.
    os.kill(int((tmp_path / "fork").read_text()), signal.SIGKILL)


BEHIND = """
import signal, time
import tokenyard

def raise_it(*_):
    raise RuntimeError("from a handler")

signal.signal(signal.SIGALRM, raise_it)
signal.setitimer(signal.ITIMER_REAL, 0.3)

def sleep(world):
    time.sleep(600)

try:
    tokenyard.launch(sleep, ranks=2)
except RuntimeError as error:
    print(error)
"""


def end_slowly(world: tokenyard.World, folder: str) -> None:
    if world.rank == 1:
        child = os.fork()  # Keeps the pipe to the launch open.
        if child == 0:
            time.sleep(FORKS_LIFE_S)
            os._exit(0)
        Path(folder, "fork").write_text(str(child))
        os.closerange(3, 4096)  # As the kernel does for a process that ends; the others notice.
        time.sleep(0.5)
        os._exit(5)
    world.barrier("for a rank whose connections close before its process has ended")


def test_a_death_is_named_though_its_consequence_is_heard_first(tmp_path: Path) -> None:
    with pytest.raises(tokenyard.ProcessDied, match="rank 1 exited with 5"):
        tokenyard.launch(end_slowly, ranks=2, processes=True, timeout=300, args=(str(tmp_path),))
    os.kill(int((tmp_path / "fork").read_text()), signal.SIGKILL)


def test_who_is_left_behind_is_no_leak() -> None:
    done: subprocess.CompletedProcess[str] = run_python("-c", BEHIND)
    assert (done.returncode, done.stdout, done.stderr) == (0, "from a handler\n", "")
