"""A server's loop: feeds during waits, dynamic signals, and errors of its calls."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import tokenyard
from tokenyard.errors import TaskTimeout
from tokenyard.megakernel import Graph, Megakernel, TensorMemory

TIMEOUT_S = 60
NOTHING = dict(parts=None, residual=None, y=None, part_count=0, stride=0, count=0)


def counting_graph(world, promised, sent, *, senders=1, dynamic_max=5, to=0):
    """Signals of `senders` tasks on every rank except, if there are others, the counting one."""
    graph, memory = Graph(world), TensorMemory(world)
    rows = graph.event("rows", dynamic_max=dynamic_max)
    done = graph.event("done")

    def number(value):
        return memory.local(np.array([value], np.uint32))

    if world.rank == to:
        graph.task("expect_signals", name="promise", expects=[rows], count=number(promised),
                   event=rows)  # fmt: skip
        graph.task("reduce", name="receive", waits=[rows], **NOTHING,
                   signals=[done.on(rank) for rank in range(world.size)])  # fmt: skip
    if world.rank != to or world.size == 1:
        for sender in range(senders):
            graph.task("signal_often", name=f"send {sender}", signals=[rows.often(to)],
                       count=number(sent), event=rows, rank=to)  # fmt: skip
    graph.loop_on(done)
    return graph


@pytest.mark.parametrize("schedulers", [0, 1])
@pytest.mark.parametrize(
    ("promised", "sent", "senders", "expected", "seen"),
    [(3, 4, 1, 3, 4), (0, 1, 1, 0, 1), (3, 2, 2, 3, 4), (5, 6, 1, 5, 6), (2, 3, 2, 2, 6)],
)
def test_more_signals_than_expected_are_named(promised, sent, senders, expected, seen, schedulers):
    def run(world):
        graph = counting_graph(world, promised, sent, senders=senders)
        kernel = Megakernel(world, graph, workers=2, schedulers=schedulers)
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            kernel.run(1)
        with pytest.raises(tokenyard.InvalidArgument, match="a new one"):
            kernel.run(1)
        return caught.value

    error = tokenyard.launch(run, ranks=1)[0]
    tasks = ", ".join(f"task 'send {sender}' of rank 0" for sender in range(senders))
    assert error.argument == f"signals of {tasks} to event 'rows'"
    assert error.expected.startswith(f"{expected} per iteration")
    # The first signal that is too many ends the run: others may not have come by then.
    assert expected < int(error.seen) <= seen


def test_more_signals_of_another_rank_than_expected_are_named():
    def run(world):
        kernel = Megakernel(world, counting_graph(world, 2, 3), workers=1)
        try:
            kernel.run(1)
        except tokenyard.InvalidArgument as error:
            return error.argument, error.seen
        except tokenyard.errors.Error:
            return "the end of a peer"
        return "nothing"

    counted, sent = tokenyard.launch(run, ranks=2, timeout=10)
    assert counted == ("signals of task 'send 0' of rank 1 to event 'rows'", "3")
    assert sent in ("nothing", "the end of a peer")


@pytest.mark.parametrize("promised", [0, 3, 5])
@pytest.mark.parametrize("schedulers", [0, 1])
def test_as_many_signals_as_expected_are_right_run_after_run(promised, schedulers):
    def run(world):
        graph = counting_graph(world, promised, promised)
        kernel = Megakernel(world, graph, workers=2, schedulers=schedulers)
        return kernel.run(3) + kernel.run(2)

    assert tokenyard.launch(run, ranks=1) == [5]


def test_a_server_feeds_while_it_waits():
    """Rank 0 waits for an iteration that rank 1 has yet to feed, and is fed meanwhile."""
    fed_meanwhile = threading.Event()

    def run(world):
        graph = Graph(world)
        ready, done = graph.event("ready"), graph.event("done")
        if world.rank == 1:
            graph.task("reduce", signals=[ready.on(0)], **NOTHING)
        else:
            graph.task("reduce", waits=[ready], **NOTHING,
                       signals=[done.on(rank) for rank in range(2)])  # fmt: skip
        graph.loop_on(done)
        kernel = Megakernel(world, graph, workers=1)
        kernel.start()
        if world.rank == 1:
            assert fed_meanwhile.wait(TIMEOUT_S)
            kernel.feed(2)
            kernel.wait(2)
            return kernel.stop()
        kernel.feed()
        ends = []
        waiting = threading.Thread(target=lambda: ends.append(kernel.wait(1)))
        waiting.start()
        while not is_refused(lambda: kernel.traces(), "one call at a time"):
            time.sleep(0.01)
        assert waiting.is_alive()
        kernel.feed()
        fed_meanwhile.set()
        waiting.join(TIMEOUT_S)
        assert ends[0] >= 1
        assert kernel.wait(2) == 2
        return kernel.stop()

    assert tokenyard.launch(run, ranks=2, timeout=TIMEOUT_S) == [2, 2]


def is_refused(call, why):
    """Returns whether a call is rejected for this reason; raises any other error."""
    try:
        call()
    except tokenyard.InvalidArgument as error:
        return why in str(error)
    return False


def kernel_of_nothing(world, **options):
    graph = Graph(world)
    graph.task("reduce", **NOTHING)
    return Megakernel(world, graph, workers=1, **options)


def test_a_trace_is_of_a_run_that_has_ended():
    def run(world):
        kernel = kernel_of_nothing(world, trace_records=8)
        kernel.start()
        kernel.feed()
        kernel.wait(1)
        for call in (kernel.trace, kernel.traces):
            with pytest.raises(tokenyard.InvalidArgument, match=r"a run that has ended: stop\(\)"):
                call()
        kernel.stop()
        return len(kernel.trace().measured_costs()), len(kernel.traces())

    assert tokenyard.launch(run, ranks=1) == [(1, 1)]


def test_only_a_run_that_was_started_is_fed():
    def run(world):
        kernel = kernel_of_nothing(world)
        for call in (kernel.feed, lambda: kernel.wait(0), kernel.stop):
            with pytest.raises(tokenyard.InvalidArgument, match=r"call start\(\) first"):
                call()
            kernel.run(1)

    tokenyard.launch(run, ranks=1)


def test_a_kernel_that_timed_out_says_that_a_new_one_is_needed():
    def run(world):
        kernel = Megakernel(world, counting_graph(world, 3, 2), workers=2)
        with pytest.raises(TaskTimeout) as first:
            kernel.run(1)
        assert "new one" not in str(first.value)
        for call in (lambda: kernel.run(1), kernel.start, kernel.feed, lambda: kernel.wait(1),
                     kernel.stop):  # fmt: skip
            with pytest.raises(TaskTimeout) as later:
                call()
            assert "failed in an earlier call" in later.value.phase
            assert "make a new one" in later.value.phase
            assert first.value.phase in later.value.phase
            assert later.value.dump == first.value.dump
        return Megakernel(world, counting_graph(world, 3, 3), workers=2).run(1)

    assert tokenyard.launch(run, ranks=1, timeout=0.5) == [1]


def test_a_kernel_that_was_cancelled_says_so_later():
    def run(world):
        kernel = kernel_of_nothing(world)
        world.cancel()
        for words in ("megakernel", "make a new one"):
            with pytest.raises(tokenyard.errors.Cancelled, match=words):
                kernel.run(1)

    tokenyard.launch(run, ranks=1)


def test_records_of_a_trace_have_a_bound():
    with pytest.raises(tokenyard.InvalidArgument, match=r"trace_records.*1048576"):
        tokenyard.launch(lambda world: kernel_of_nothing(world, trace_records=2**30), ranks=1)
