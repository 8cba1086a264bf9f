"""Task graphs built in Python: their results, rejected graphs, and how they run."""

from __future__ import annotations

import json
import sys
import threading
import time

import numpy as np
import pytest

import tokenyard
from tokenyard.errors import InvalidGraph, TaskTimeout
from tokenyard.megakernel import Event, Graph, Megakernel, Signal, TensorMemory, perfetto

SUM = dict(parts=None, residual=None, y=None, part_count=0, stride=0, count=0)


def with_graph(build, **options):
    """Returns the result or error of `build(world, graph, memory)` on a world of one rank."""

    def run(world):
        return build(world, Graph(world), TensorMemory(world))

    return tokenyard.launch(run, ranks=1, **options)[0]


def test_a_graph_that_cannot_work_is_explained():
    def build(world, graph, memory):
        event = graph.event("never")
        piece = memory.local(8)
        graph.task(
            "copy_to_peer", name="hopes", waits=[event], to=piece, words=1, **{"from": piece}
        )
        Megakernel(world, graph)

    with pytest.raises(InvalidGraph, match=r"unreachable: task 'hopes' of rank 0") as caught:
        with_graph(build)
    assert caught.value.fault == "unreachable"
    assert caught.value.witness[1] == "awaits event 'never' of rank 0"
    assert "signals each awaited event" in caught.value.fix


def test_arguments_go_by_their_names():
    def missing(world, graph, memory):
        graph.task("reduce", parts=memory.local(8))

    def unknown(world, graph, memory):
        piece = memory.local(8)
        graph.task("copy_to_peer", to=piece, words=1, speed=3, **{"from": piece})

    def no_such(world, graph, memory):
        graph.task("conjure")

    with pytest.raises(tokenyard.InvalidArgument, match=r"one called residual"):
        with_graph(missing)
    with pytest.raises(tokenyard.InvalidArgument, match=r"expected 3 of them, got 4"):
        with_graph(unknown)
    with pytest.raises(tokenyard.InvalidArgument, match=r"one of embed, linear"):
        with_graph(no_such)


def kernel_of_a_sum(world, graph, memory):
    """Adds a task for 1.5 + 2.5; returns the piece of the sum."""
    parts = memory.local(np.array([1.5, 2.5], np.float32))
    given = graph.tensor("parts", parts, 8, given=True)
    total = graph.tensor("total", memory.local(4), 4)
    graph.task(
        "reduce", reads=[given.all()], writes=[total.all()],
        parts=parts, residual=None, y=total.piece, part_count=2, stride=1, count=1,
    )  # fmt: skip
    return Megakernel(world, graph, workers=1), total


def test_a_run_is_fed_by_its_host():
    def build(world, graph, memory):
        kernel, total = kernel_of_a_sum(world, graph, memory)
        kernel.start()
        kernel.feed(3)
        kernel.wait(3)
        return kernel.stop(), memory.read(total.piece, np.float32, 1)[0]

    assert with_graph(build) == (3, 4.0)


def test_more_than_can_be_counted_is_not_fed():
    def build(world, graph, memory):
        kernel, _ = kernel_of_a_sum(world, graph, memory)
        kernel.start()
        try:
            kernel.feed(2**31)
        finally:
            kernel.stop()

    with pytest.raises(
        tokenyard.InvalidArgument,
        match=r"at most 2147483647 in addition to the 0 fed, got 2147483648",
    ):
        with_graph(build)


def test_a_start_lets_other_threads_run():
    """It waits for the ranks that share its GPU, whose threads may need the interpreter."""

    def build(world, graph, memory):
        kernel, _ = kernel_of_a_sum(world, graph, memory)
        turns, done = 0, threading.Event()

        def count():
            nonlocal turns
            while not done.is_set():
                turns += 1
                time.sleep(0)

        other = threading.Thread(target=count)
        other.start()
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1000)  # No thread is made to let go.
        try:
            for _ in range(200):  # It need not take the lock each time.
                before = turns
                kernel.start()
                after = turns
                kernel.stop()
                if after != before:
                    return True
            return False
        finally:
            sys.setswitchinterval(interval)
            done.set()
            other.join()

    assert with_graph(build)


class CountedRows:
    """Sums three numbers once as many rows have been sent as promised, by two words that the host
    writes."""

    def __init__(self, graph, memory):
        self.promised, self.sent = (memory.visible(np.array([0], np.uint32)) for _ in range(2))
        self.numbers, self.sum = (memory.visible(np.zeros(n, np.float32)) for n in (3, 1))

        def tensor(name, place, **how):
            return graph.tensor(name, place[0], place[0].bytes, **how).all()

        rows = graph.event("rows", dynamic_max=5)
        done = graph.event("done", count=1)
        graph.task(
            "expect_signals", name="promise", reads=[tensor("promised", self.promised, given=True)],
            expects=[rows], count=self.promised[0], event=rows,
        )  # fmt: skip
        graph.task(
            "signal_often", name="send", reads=[tensor("sent", self.sent, given=True)],
            signals=[rows.often()], count=self.sent[0], event=rows, rank=0,
        )  # fmt: skip
        graph.task(
            "reduce", name="sum", reads=[tensor("numbers", self.numbers, given=True)],
            writes=[tensor("sum", self.sum)], waits=[rows], signals=[done],
            parts=self.numbers[0], residual=None, y=self.sum[0],
            part_count=3, stride=1, count=1,
        )  # fmt: skip
        graph.loop_on(done)


@pytest.mark.parametrize("schedulers", [0, 1])
def test_a_server_feeds_counts_that_only_the_device_knows(schedulers):
    def build(world, graph, memory):
        rows = CountedRows(graph, memory)
        kernel = Megakernel(world, graph, workers=2, schedulers=schedulers)
        kernel.start()
        sums = []
        for request in range(1, 5):
            rows.promised[1][0] = rows.sent[1][0] = request
            rows.numbers[1][:] = request
            kernel.feed()
            assert kernel.wait(request) == request
            sums.append(rows.sum[1][0])
        assert kernel.stop() == 4
        return sums

    assert with_graph(build) == [3, 6, 9, 12]


@pytest.mark.parametrize("schedulers", [0, 1])
def test_a_task_that_cannot_go_on_is_named_with_all_workers(schedulers):
    def build(world, graph, memory):
        rows = CountedRows(graph, memory)
        rows.promised[1][0], rows.sent[1][0] = 3, 2
        kernel = Megakernel(world, graph, workers=2, schedulers=schedulers)
        with pytest.raises(TaskTimeout) as caught:
            kernel.run(1)
        assert kernel.finished_iterations == 0
        return caught.value

    error = with_graph(build, timeout=0.3)
    assert "task 'sum' awaits event 'rows' of iteration 0: has 5 of 6" in error.phase
    assert (error.expected, error.seen) == (6, 5)
    assert len(error.dump.splitlines()) == 2 + schedulers


def kernel_of_many_sums(world, graph, memory, **options):
    """Adds a hundred parallel tasks that sum three numbers each; returns the pieces of the sums."""
    numbers = memory.local(np.arange(300, dtype=np.float32))
    given = graph.tensor("numbers", numbers, numbers.bytes, given=True)
    sums = memory.local(400)
    each = graph.tensor("sums", sums, 400)
    begun = graph.event("begun")
    graph.task("reduce", name="begin", signals=[begun], **SUM)
    for i in range(100):
        graph.task(
            "reduce", name=f"sum {i}", reads=[given.all()], writes=[each.part(4 * i, 4 * i + 4)],
            waits=[begun], parts=numbers.at(12 * i), residual=None, y=sums.at(4 * i),
            part_count=3, stride=1, count=1,
        )  # fmt: skip
    return Megakernel(world, graph, workers=2, **options), sums


@pytest.mark.parametrize("schedulers", [1, 2])
def test_schedulers_wait_where_a_queue_is_full(schedulers):
    def build(world, graph, memory):
        kernel, sums = kernel_of_many_sums(
            world, graph, memory, schedulers=schedulers, task_slots=1
        )
        assert kernel.run(3) == 3
        return memory.read(sums, np.float32, 100)

    assert (with_graph(build) == np.arange(300).reshape(100, 3).sum(1)).all()


def test_room_in_a_queue_has_a_bound():
    def build(world, graph, memory):
        kernel_of_many_sums(world, graph, memory, schedulers=1, task_slots=1025)

    with pytest.raises(tokenyard.InvalidArgument, match=r"task_slots.*at most 1024.*1025"):
        with_graph(build)


def test_more_signals_than_were_declared_are_refused():
    def build(world, graph, memory):
        rows = CountedRows(graph, memory)
        rows.promised[1][0] = 6
        Megakernel(world, graph).run(1)

    with pytest.raises(tokenyard.InvalidArgument, match=r"expect\(\) of task 'promise'.*at most 5"):
        with_graph(build)


@pytest.mark.parametrize("size", [1024, np.int64(1024), np.uint8(24)])
def test_a_size_is_of_any_integer_type(size):
    def build(world, graph, memory):
        piece = memory.local(size)
        return piece.bytes, memory.read(piece, np.uint8, int(size)).any()

    assert with_graph(build) == (int(size), False)


def test_a_copy_of_an_array_is_the_callers_own():
    def build(world, graph, memory):
        piece = memory.local(np.arange(6, dtype=np.int16).reshape(2, 3))
        first = memory.read(piece, np.int16, 6)
        first[0] = 7
        return piece.bytes, first.tolist(), memory.read(piece, np.int16, 6).tolist()

    assert with_graph(build) == (12, [7, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5])


def test_what_the_host_sees_outlives_its_memory():
    def build(world, graph, memory):
        return memory.visible(np.arange(6, dtype=np.int64).reshape(2, 3))[1]

    assert with_graph(build).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda graph, memory: graph.event("e", dynamic_max=-1), "dynamic_max"),
        (lambda graph, memory: graph.event("e", count=2**32), "count"),
        (lambda graph, memory: graph.tensor("x", memory.local(8), 9), "size of tensor 'x'"),
        (lambda graph, memory: memory.local(-1), "bytes"),
        (lambda graph, memory: memory.local(np.float32(8)), "bytes"),
        (lambda graph, memory: memory.local([1, 2]), "bytes"),
        (lambda graph, memory: memory.local(True), "bytes"),
        (lambda graph, memory: graph.task("reduce", worker=-1), "worker"),
        (lambda graph, memory: graph.task("reduce", waits=[Event(7)], **SUM), "events of task"),
        (
            lambda graph, memory: graph.task("reduce", signals=[Signal(Event(0), 1)], **SUM),
            "events of task",
        ),
        (lambda graph, memory: graph.task("reduce", **{**SUM, "count": -1}), "count of a reduce"),
        (lambda graph, memory: graph.task("reduce", **{**SUM, "y": 5}), "y of a reduce task"),
    ],
)
def test_wrong_arguments_are_named(wrong, named):
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        with_graph(lambda world, graph, memory: wrong(graph, memory))
    assert named in caught.value.argument


@pytest.mark.parametrize("option", ["workers", "compute_warps", "schedulers", "trace_records"])
def test_wrong_options_are_named(option):
    with pytest.raises(tokenyard.InvalidArgument, match=f"{option}: .*got -1"):
        with_graph(lambda world, graph, memory: Megakernel(world, graph, **{option: -1}))


@pytest.mark.parametrize("longest", [0, 1, 2])
def test_costs_that_were_measured_place_the_next_run(longest):
    def build(world, graph, memory):
        ones = memory.local(np.ones(8, np.float32))
        given = graph.tensor("ones", ones, 32, given=True)
        tasks = []
        for index in range(3):
            place = memory.local(32)
            written = graph.tensor(f"sum {index}", place, 32)
            task = graph.task(
                "reduce", name=f"sum {index}", reads=[given.all()], writes=[written.all()],
                parts=ones, residual=None, y=place, part_count=1, stride=0, count=8,
            )  # fmt: skip
            tasks.append(task)
        kernel = Megakernel(world, graph, workers=2, trace_records=8)
        kernel.run(2)
        costs = kernel.trace().measured_costs()
        assert len(costs) == 3
        assert all(cost > 0 for cost in costs)
        costs[longest] = 2 * sum(costs)  # Two shared cores give arbitrary times.
        graph.set_costs(dict(zip(tasks, costs, strict=True)))
        kernel = Megakernel(world, graph, workers=2, trace_records=8)
        kernel.run(1)
        return json.loads(kernel.trace().perfetto())["traceEvents"]

    workers = {event["name"]: event["tid"] for event in with_graph(build) if event["ph"] == "X"}
    others = {workers[f"sum {index}"] for index in range(3) if index != longest}
    assert len(others) == 1
    assert workers[f"sum {longest}"] not in others


def test_traces_of_all_ranks_are_one_file_on_every_rank():
    def run(world):
        graph, memory = Graph(world), TensorMemory(world)
        other = 1 - world.rank
        told = graph.event("told")
        for name, links in [
            ("tell", dict(signals=[Signal(told, other)])),
            ("hear", dict(waits=[told])),
        ]:
            place = memory.local(32)
            written = graph.tensor(f"{name} sum", place, 32)
            graph.task(
                "reduce", name=f"{name} {world.rank}", writes=[written.all()], parts=place,
                residual=None, y=place, part_count=0, stride=0, count=8, **links,
            )  # fmt: skip
        graph.once()
        kernel = Megakernel(world, graph, workers=2, trace_records=8)
        kernel.run(1)
        traces = kernel.traces()
        assert [trace.rank for trace in traces] == [0, 1]
        with pytest.raises(tokenyard.InvalidArgument, match="two of rank 0"):
            perfetto([traces[0], traces[0]])
        return perfetto(traces)

    files = tokenyard.launch(run, ranks=2)
    assert files[0] == files[1]
    events = json.loads(files[0])["traceEvents"]
    assert {event["name"] for event in events if event.get("cat") == "reduce"} == {
        f"{name} {rank}" for name in ("tell", "hear") for rank in range(2)
    }
    arrows = {(event["ph"], event["pid"]) for event in events if event.get("cat") == "remote event"}
    assert arrows == {("s", 0), ("f", 0), ("s", 1), ("f", 1)}
