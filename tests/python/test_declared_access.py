"""Accesses of tasks are compared with their declarations; neither is trusted."""

from __future__ import annotations

import numpy as np
import pytest

import tokenyard
from tokenyard.errors import InvalidGraph, Unsupported
from tokenyard.megakernel import Event, Graph, Megakernel, Region, Signal, Task, TensorMemory, Wait

NOTHING = dict(parts=None, residual=None, y=None, part_count=0, stride=0, count=0)


def with_graph(build, ranks=1, **options):
    """Returns the result or error of `build(world, graph, memory)` on rank 0."""

    def run(world):
        return build(world, Graph(world), TensorMemory(world))

    return tokenyard.launch(run, ranks=ranks, **options)[0]


def sum_to(graph, parts, y, **regions):
    """y = the sum of two floats of `parts`."""
    graph.task("reduce", name="sum", parts=parts, residual=None, y=y, part_count=2, stride=1,
               count=1, **regions)  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second"), [((0, 4), (0, 4)), ((0, 16), (4, 4)), ((4, 8), (0, 8)), ((8, 4), (4, 12))]
)
def test_two_tensors_have_no_byte_together(first, second):
    def build(world, graph, memory):
        piece = memory.local(16)
        graph.tensor("a", piece.at(first[0]), first[1])
        graph.tensor("c", piece.at(second[0]), second[1])

    with pytest.raises(tokenyard.InvalidArgument) as caught:
        with_graph(build)
    assert caught.value.argument == "piece of tensor 'c'"
    begin = max(first[0], second[0]) - first[0]
    end = min(sum(first), sum(second)) - first[0]
    assert caught.value.seen == f"bytes [{begin}, {end}) of tensor 'a'"


def test_neighbours_in_one_piece_are_two_tensors():
    def build(world, graph, memory):
        piece = memory.local(16)
        for begin in (8, 0, 12, 4):
            graph.tensor(f"t{begin}", piece.at(begin), 4)
        graph.tensor("empty", piece.at(4), 0)

    with_graph(build)


def test_a_tensor_lies_in_memory_of_its_rank():
    def run(world):
        pieces = TensorMemory(world).shared(8)
        Graph(world).tensor("theirs", pieces[1 - world.rank], 8)

    with pytest.raises(tokenyard.InvalidArgument, match="one of this rank"):
        tokenyard.launch(run, ranks=2)


@pytest.mark.parametrize(
    ("reads", "writes", "witness"),
    [
        ((0, 4), (0, 4), "reads bytes [4, 8) of tensor 'parts' of rank 0"),
        ((4, 8), (0, 4), "reads bytes [0, 4) of tensor 'parts' of rank 0"),
        ((0, 8), (4, 8), "writes bytes [0, 4) of tensor 'sums' of rank 0"),
        ((0, 8), None, "writes bytes [0, 4) of tensor 'sums' of rank 0"),
        (None, (0, 8), "reads bytes [0, 8) of tensor 'parts' of rank 0"),
    ],
)
def test_arguments_touch_what_regions_declare(reads, writes, witness):
    def build(world, graph, memory):
        parts, sums = memory.local(np.ones(2, np.float32)), memory.local(8)
        given = graph.tensor("parts", parts, 8, given=True)
        found = graph.tensor("sums", sums, 8)
        sum_to(graph, parts, sums, reads=[given.part(*reads)] if reads else [],
               writes=[found.part(*writes)] if writes else [])  # fmt: skip
        Megakernel(world, graph)

    with pytest.raises(InvalidGraph) as caught:
        with_graph(build)
    assert caught.value.fault == "undeclared access"
    assert caught.value.witness[:2] == ["task 'sum' of rank 0", witness]


def test_memory_in_no_tensor_is_read_and_not_written():
    def build(world, graph, memory):
        parts, sums = memory.local(np.ones(2, np.float32)), memory.local(4)
        found = graph.tensor("sums", sums, 4)
        sum_to(graph, parts, sums, writes=[found.all()])
        Megakernel(world, graph).run(1)
        total = memory.read(sums, np.float32, 1)[0]
        sum_to(graph, parts, memory.local(4))
        with pytest.raises(
            InvalidGraph, match=r"writes bytes .* of a piece of 4 bytes, outside all tens"
        ):
            Megakernel(world, graph)
        return total

    assert with_graph(build) == 2


def test_a_tensor_that_is_declared_after_its_task_counts():
    def build(world, graph, memory):
        parts, sums = memory.local(np.ones(2, np.float32)), memory.local(4)
        found = graph.tensor("sums", sums, 4)
        sum_to(graph, parts, sums, writes=[found.all()])
        graph.tensor("parts", parts, 8, given=True)
        Megakernel(world, graph)

    with pytest.raises(InvalidGraph, match=r"undeclared access.*of tensor 'parts'"):
        with_graph(build)


def test_rows_apart_need_no_bytes_between_them():
    def build(world, graph, memory):
        parts, sums = memory.local(np.arange(6, dtype=np.float32)), memory.local(4)
        given = graph.tensor("parts", parts, 24, given=True)
        found = graph.tensor("sums", sums, 4)
        graph.task("reduce", reads=[given.part(0, 4), given.part(12, 16)], writes=[found.all()],
                   parts=parts, residual=None, y=sums, part_count=2, stride=3, count=1)  # fmt: skip
        Megakernel(world, graph).run(1)
        return memory.read(sums, np.float32, 1)[0]

    assert with_graph(build) == 3


def test_a_fault_of_one_rank_is_told_to_all():
    def run(world):
        graph, memory = Graph(world), TensorMemory(world)
        parts, sums = memory.local(np.ones(2, np.float32)), memory.local(4)
        found = graph.tensor("sums", sums, 4)
        sum_to(graph, parts, sums, writes=[found.all()] if world.rank == 0 else [])
        with pytest.raises(InvalidGraph) as caught:
            Megakernel(world, graph)
        return caught.value.witness

    witnesses = tokenyard.launch(run, ranks=2)
    assert witnesses[0] == witnesses[1]
    assert witnesses[0][0] == "task 'sum' of rank 1"


def test_ranks_mean_the_same_bytes_by_a_shared_tensor():
    def run(world):
        graph, memory = Graph(world), TensorMemory(world)
        piece = memory.shared(16)[world.rank]
        graph.tensor("inbox", piece.at(8 * world.rank), 8)
        with pytest.raises(InvalidGraph, match="tables differ: tensor 'inbox' of rank 0"):
            Megakernel(world, graph)

    tokenyard.launch(run, ranks=2)


def test_a_copy_to_a_peer_goes_where_its_region_says():
    def run(world, rank_of_region):
        graph, memory = Graph(world), TensorMemory(world)
        pieces = memory.shared(4)
        inbox = graph.tensor("inbox", pieces[world.rank], 4)
        ones = memory.local(np.ones(1, np.float32))
        graph.once()
        if world.rank == 0:
            graph.task("copy_to_peer", writes=[inbox.all().of(rank_of_region)], to=pieces[1],
                       words=1, **{"from": ones})  # fmt: skip
        Megakernel(world, graph, workers=1).run(1)
        world.barrier()
        return memory.read(pieces[world.rank], np.float32, 1)[0]

    assert tokenyard.launch(lambda world: run(world, 1), ranks=2) == [0, 1]
    with pytest.raises(InvalidGraph, match=r"writes bytes .* of tensor 'inbox' of rank 1"):
        tokenyard.launch(lambda world: run(world, 0), ranks=2)


def test_a_stranger_is_refused():
    def build(world, graph, memory):
        other = Graph(world)
        event, tensor = other.event("event"), other.tensor("x", memory.local(4), 4, given=True)
        task = other.task("reduce", **NOTHING)
        graph.event("ours")
        graph.tensor("ours", memory.local(4), 4)
        count = memory.local(4)
        calls = [
            lambda: graph.task("reduce", waits=[event], **NOTHING),
            lambda: graph.task("reduce", waits=[event.before()], **NOTHING),
            lambda: graph.task("reduce", signals=[event], **NOTHING),
            lambda: graph.task("reduce", signals=[event.on(0)], **NOTHING),
            lambda: graph.task("expect_signals", expects=[event], count=count, event=event),
            lambda: graph.task("reduce", reads=[tensor.all()], **NOTHING),
            lambda: graph.task("reduce", writes=[tensor.part(0, 2)], **NOTHING),
            lambda: graph.task("reduce", adds=[tensor.all().of(0)], **NOTHING),
            lambda: graph.task("reduce", streams=[tensor.all()], **NOTHING),
            lambda: graph.task("reduce", waits=[Event(0)], **NOTHING),
            lambda: graph.task("reduce", reads=[Region(0, 0, 4)], **NOTHING),
            lambda: graph.loop_on(event),
            lambda: graph.set_costs({task: 5}),
            lambda: graph.set_costs({Task(0): 5}),
        ]
        for call in calls:
            with pytest.raises(tokenyard.InvalidArgument, match="what this graph has made"):
                call()
        return len(calls)

    assert with_graph(build) == 14


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda g, x, e: x.part(-4, 4), "begin of a part"),
        (lambda g, x, e: x.part(4, 2), "end of a part"),
        (lambda g, x, e: x.part(0, 9), "end of a part"),
        (lambda g, x, e: x.part(0, 1.5), "end of a part"),
        (lambda g, x, e: x.part("a", 4), "begin of a part"),
        (lambda g, x, e: g.task("reduce", reads=[x.all().of(-1)], **NOTHING), "reads of task"),
        (lambda g, x, e: g.task("reduce", reads=[x.all().of(1)], **NOTHING), "reads of task"),
        (lambda g, x, e: g.task("reduce", reads=[x], **NOTHING), "reads of task"),
        (lambda g, x, e: g.task("reduce", waits=[Wait(e, -1)], **NOTHING), "lag of task"),
        (lambda g, x, e: g.task("reduce", waits=[Wait(e, 2)], **NOTHING), "lag of task"),
        (lambda g, x, e: g.task("reduce", waits=[x], **NOTHING), "events of task"),
        (lambda g, x, e: g.task("reduce", signals=[e.on(-1)], **NOTHING), "rank of a signal"),
        (lambda g, x, e: g.task("reduce", signals=[e.on(1)], **NOTHING), "a signal of task"),
        (lambda g, x, e: g.task("reduce", signals=[e.on(0, -1)], **NOTHING), "count of task"),
        (lambda g, x, e: g.task("reduce", signals=[Signal(5)], **NOTHING), "events of task"),
        (lambda g, x, e: g.task("reduce", cost_ns=-1, **NOTHING), "cost_ns"),
        (lambda g, x, e: g.task("reduce", name=5, **NOTHING), "name of a task"),
        (lambda g, x, e: g.task(5), "kind of a task"),
        (lambda g, x, e: g.event(5), "name of an event"),
        (lambda g, x, e: g.tensor("y", 5, 4), "piece of tensor 'y'"),
        (lambda g, x, e: g.tensor(5, x.piece, 4), "name of a tensor"),
        (lambda g, x, e: g.tensor("y", x.piece, -1), "size of tensor 'y'"),
        (lambda g, x, e: g.loop_on(5), "loop event"),
        (lambda g, x, e: Graph(5), "world"),
        (lambda g, x, e: TensorMemory(None), "world"),
        (lambda g, x, e: Megakernel(None, g), "world"),
    ],
)
def test_wrong_arguments_get_our_error(wrong, named):
    def build(world, graph, memory):
        wrong(graph, graph.tensor("x", memory.local(8), 8, given=True), graph.event("e"))

    with pytest.raises(tokenyard.InvalidArgument) as caught:
        with_graph(build)
    assert named in caught.value.argument


@pytest.mark.parametrize(
    "wrong",
    [
        lambda memory, piece: memory.read(piece, np.uint8, 9),
        lambda memory, piece: memory.read(piece, np.uint8, -1),
        lambda memory, piece: memory.read(piece, object, 1),
        lambda memory, piece: memory.read(5, np.uint8, 1),
        lambda memory, piece: memory.write(piece, np.zeros(9, np.uint8)),
        lambda memory, piece: memory.write(piece, np.array([None])),
        lambda memory, piece: memory.write(5, np.zeros(1)),
        lambda memory, piece: memory.local(np.array([None])),
        lambda memory, piece: memory.visible(np.array([None])),
        lambda memory, piece: memory.visible(8),
        lambda memory, piece: memory.shared(-1),
        lambda memory, piece: piece.at(-4),
        lambda memory, piece: piece.at(9),
        lambda memory, piece: piece.at(1.5),
        lambda memory, piece: piece.at("a"),
    ],
)
def test_wrong_memory_gets_our_error(wrong):
    with pytest.raises(tokenyard.InvalidArgument):
        with_graph(lambda world, graph, memory: wrong(memory, memory.local(8)))


def embedding_of(graph, memory, token, **neighbours):
    """x = row `token` of a table of four rows, which another tensor may follow."""
    place = memory.local(64 + 16 if neighbours else 64)
    table = graph.tensor("table", place, 64, given=True)
    if neighbours:
        graph.tensor("neighbour", place.at(64), 16, given=True)
    given = memory.local(np.array([token], np.uint32))
    x = memory.local(32)
    graph.task("embed", name="embed", table=place, token=given, x=x, hidden=8,
               reads=[table.all()], writes=[graph.tensor("x", x, 32).all()])  # fmt: skip


@pytest.mark.parametrize("schedulers", [0, 1])
def test_a_checked_run_finds_nothing_where_all_is_declared(schedulers):
    def build(world, graph, memory):
        embedding_of(graph, memory, 3)
        kernel = Megakernel(world, graph, schedulers=schedulers, check_accesses=True)
        return kernel.run(3)

    assert with_graph(build) == 3


@pytest.mark.parametrize("schedulers", [0, 1])
@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize(
    ("neighbours", "seen"),
    [
        ({}, "outside all pieces of the graph"),
        (dict(after=True), "of tensor 'neighbour' of rank 0"),
    ],
)
def test_a_checked_run_ends_before_contents_lead_elsewhere(neighbours, seen, fed, schedulers):
    """A token beyond the table, which no argument reveals."""

    def build(world, graph, memory):
        embedding_of(graph, memory, 4, **neighbours)
        kernel = Megakernel(world, graph, schedulers=schedulers, check_accesses=True)

        def run_one():
            if not fed:
                return kernel.run(1)
            kernel.start()
            kernel.feed()
            return kernel.wait(1)

        with pytest.raises(InvalidGraph) as caught:
            run_one()
        with pytest.raises(tokenyard.InvalidArgument, match="a new one"):
            kernel.run(1)
        return caught.value

    error = with_graph(build)
    assert error.fault == "undeclared access"
    assert error.witness[0] == "task 'embed' of rank 0"
    assert error.witness[1].startswith("reads ")
    assert seen in error.witness[1]


def test_only_kernels_that_report_their_accesses_are_checked():
    from test_megakernel_memory import DECODER, HEAD

    names: dict = {}
    exec(HEAD + DECODER.rsplit("print(", 1)[0], names)

    def build(world, graph, memory):
        kept: list = []
        names["build"](world, kept)
        decoder = kept[1]
        with pytest.raises(Unsupported, match="check_accesses"):
            Megakernel(world, decoder.graph, unit_bytes=decoder.unit_bytes, check_accesses=True)

    with_graph(build)
