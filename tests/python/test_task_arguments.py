"""Every argument of every task is checked against its piece before anything runs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from programs import run_python

import tokenyard
from tokenyard.megakernel import Graph, Megakernel, TensorMemory

HEAD = """
import numpy as np, tokenyard
from tokenyard.megakernel import Graph, Megakernel, TensorMemory

def run(world):
    graph, memory = Graph(world), TensorMemory(world)
    try:
        BODY
        Megakernel(world, graph, workers=1).run(1)
    except tokenyard.InvalidArgument as error:
        return error.argument, error.expected, error.seen

print(*tokenyard.launch(run, ranks=1)[0], sep="; ")
"""

NOTHING = 'graph.task("reduce", parts=None, residual=None, y=None, part_count=1, stride=1, count=1)'
TOO_MANY = """p = memory.local(4)
        t = graph.tensor("t", p, 4, given=True)
        graph.task("reduce", reads=[t.all()], writes=[t.all()], parts=p, residual=None, y=p,
                   part_count=1, stride=1, count=1 << 28)"""
NO_SUCH_RANK = """sent = memory.local(np.array([1], np.uint32))
        event = graph.event("e", dynamic_max=1)
        graph.task("signal_often", signals=[event.often()], count=sent, event=event, rank=9)"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (NOTHING, "parts of a reduce task 'reduce 0'; a piece of 4 bytes; None"),
        (
            TOO_MANY,
            "parts of a reduce task 'reduce 0'; a piece of 1073741824 bytes, which the task reads; "
            "one of 4",
        ),
        (NO_SUCH_RANK, "rank of a signal_often task 'signal_often 0'; below 1; 9"),
    ],
)
def test_no_argument_ends_the_interpreter(body: str, said: str) -> None:
    done = run_python("-c", HEAD.replace("BODY", body))
    assert done.returncode == 0, done.stderr or f"killed by signal {-done.returncode}"
    assert done.stdout.strip() == said


BF16, F32, U32, U64, ANY = "bfloat16", "float32", "uint32", "uint64", ""

# Valid arguments per task type; pieces as (access, element type, number). A question mark: may be
# None.
TASKS = {
    "embed": dict(table=("reads", BF16, 32), token=("reads", U32, 1), x=("writes", F32, 8),
                  hidden=8),
    "linear": dict(weights=("streams", BF16, 64), x=("reads", F32, 16), norm=("reads?", BF16, 16),
                   residual=("reads?", F32, 4), y=("writes", F32, 4), rows=4, columns=16,
                   unit_bytes=4096, epsilon=1e-5),
    "gated_linear": dict(weights=("streams", BF16, 128), x=("reads", F32, 16),
                         norm=("reads?", BF16, 16), h=("writes", F32, 4), rows=4, columns=16,
                         unit_bytes=4096, epsilon=1e-5),
    "attention": dict(q=("reads", F32, 8), k=("reads", F32, 4), v=("reads", F32, 4),
                      k_cache=("both", BF16, 32), v_cache=("both", BF16, 32),
                      pages=("reads", U32, 2), position=("reads", U32, 1), out=("writes", F32, 8),
                      group=2, dim=4, page_tokens=4, frequencies=("reads", F32, 2),
                      q_norm=None, k_norm=None, window=4, epsilon=1e-5),
    "pick_best": dict(logits=("reads", F32, 5), best=("writes", ANY, 8), count=5, first_token=0),
    "next_token": dict(parts=("reads", ANY, 16), token=("both", U32, 1), position=("both", U32, 1),
                       tokens=("both", U32, 5), prompt=("reads", U32, 2), status=("writes", U32, 1),
                       sums=("writes", U64, 3), broken=("reads?", U32, 1), sum_count=3,
                       part_count=2, positions_max=4, prompt_tokens=2,
                       **{f"stop_tokens[{i}]": 7 + i for i in range(8)}),
    "copy_to_peer": {"from": ("reads", ANY, 16), "to": ("writes", ANY, 16), "words": 4},
    "reduce": dict(parts=("reads", F32, 6), residual=("reads?", F32, 2), y=("writes", F32, 2),
                   part_count=3, stride=2, count=2),
    "route_token": dict(scores=("reads", F32, 4), picks=("writes", U32, 2),
                        weights=("writes", F32, 2), experts=4, topk=2, normalised=1),
    "expert_gated": dict(weights=("reads", BF16, 128), x=("reads", F32, 8),
                         norm=("reads?", BF16, 8), picks=("reads", U32, 2), h=("writes", F32, 8),
                         pick=1, first_row=0, rows=4, expert_rows=4, columns=8, epsilon=1e-5),
    "expert_down": dict(weights=("reads", BF16, 64), h=("reads", F32, 16), picks=("reads", U32, 2),
                        pick_weights=("reads", F32, 2), residual=("reads?", F32, 4),
                        y=("writes", F32, 4), topk=2, first_row=0, rows=4, expert_rows=8, hidden=4),
    "expect_signals": dict(count=("reads", U32, 1), event="event"),
    "signal_often": dict(count=("reads", U32, 1), event="event", rank=0),
}  # fmt: skip

# They name tokens or positions, not memory.
FREE = {("pick_best", "first_token"), ("attention", "window")}
FREE |= {("next_token", f"stop_tokens[{i}]") for i in range(8)}


def array_of(dtype: str, elements: int) -> np.ndarray:
    kind = {BF16: ml_dtypes.bfloat16, ANY: np.uint8}.get(dtype, dtype)
    return np.zeros(elements, kind)


def attempt(world, kind, change=None, runs=True):
    """Makes a graph of one such task with one argument changed; a dynamic task gets its partner."""
    graph, memory = Graph(world), TensorMemory(world)
    regions: dict[str, list] = dict(reads=[], writes=[], streams=[])
    event = graph.event("counted", dynamic_max=1)
    args = {}
    for name, value in TASKS[kind].items():
        args[name] = event if value == "event" else value
        if isinstance(value, tuple):
            does, dtype, elements = value
            piece = memory.local(array_of(dtype, elements))
            region = graph.tensor(name, piece, piece.bytes, given=True).all()
            for access in ("reads", "writes") if does == "both" else (does.rstrip("?"),):
                regions[access].append(region)
            args[name] = piece
    declared = {}
    if kind == "expect_signals":
        declared = dict(expects=[event])
    if kind == "signal_often":
        none = memory.local(array_of(U32, 1))
        graph.task("expect_signals", expects=[event], count=none, event=event)
        declared = dict(signals=[event.often()])
    if change is not None:
        field, make = change
        args[field] = make(memory, event)
    graph.once()
    graph.task(kind, **regions, **declared, **args)
    kernel = Megakernel(world, graph, workers=1)
    if runs:
        kernel.run(1)


def refusals(kind, changes):
    """Returns the error of each change of an argument."""

    def run(world):
        answers = []
        for field, make in changes:
            try:
                attempt(world, kind, (field, make), runs=False)
                answers.append("")
            except tokenyard.InvalidArgument as error:
                answers.append(str(error))
        return answers

    return tokenyard.launch(run, ranks=1)[0]


def fields(kind, of_type):
    return [name for name, value in TASKS[kind].items() if isinstance(value, of_type)]


def test_the_table_has_every_task_and_every_argument():
    def types(world):
        return dict(Graph(world)._native.task_types)

    known = tokenyard.launch(types, ranks=1)[0]
    assert {kind: set(names) for kind, names in known.items()} == {
        kind: set(args) for kind, args in TASKS.items()
    }


@pytest.mark.parametrize("kind", TASKS)
def test_arguments_that_fit_are_taken(kind):
    tokenyard.launch(lambda world: attempt(world, kind), ranks=1)


@pytest.mark.parametrize("kind", TASKS)
def test_a_piece_is_as_large_as_what_the_task_touches_by_it(kind):
    names = fields(kind, tuple)
    changes = [(name, lambda memory, event: memory.local(1)) for name in names]
    for name, answer in zip(names, refusals(kind, changes), strict=True):
        assert answer.startswith(f"{name} of a {kind} task"), (name, answer)
        assert "one of 1" in answer


@pytest.mark.parametrize("kind", TASKS)
def test_none_stands_only_for_what_the_task_can_do_without(kind):
    names = fields(kind, tuple)
    answers = refusals(kind, [(name, lambda memory, event: None) for name in names])
    for name, answer in zip(names, answers, strict=True):
        if TASKS[kind][name][0].endswith("?"):
            assert answer == ""
        else:
            assert answer.startswith(f"{name} of a {kind} task"), (name, answer)
            assert answer.endswith("got None")


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("wrong", ["float64", "int8", "other"])
def test_elements_are_of_the_type_that_the_task_reads(kind, wrong):
    typed = [name for name in fields(kind, tuple) if TASKS[kind][name][1] != ANY]

    def other_than(name):
        dtype = F32 if TASKS[kind][name][1] != F32 else U32
        return array_of(dtype if wrong == "other" else wrong, 1024)

    changes = [(name, lambda memory, event, name=name: memory.local(other_than(name)))
               for name in typed]  # fmt: skip
    for name, answer in zip(typed, refusals(kind, changes), strict=True):
        assert f"{name} of a {kind} task" in answer, (name, answer)
        assert f"elements of {TASKS[kind][name][1]}" in answer


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("wrong", [5, "x", 1.5, [1]], ids=str)
def test_a_piece_is_a_piece(kind, wrong):
    names = fields(kind, tuple)
    for name, answer in zip(
        names, refusals(kind, [(name, lambda memory, event: wrong) for name in names]), strict=True
    ):
        assert answer.startswith(f"{name} of a {kind} task"), (name, answer)


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize(
    "wrong", [-1, 2**32, 1.5, np.float32(1.5), True, "3", None, "an Event"], ids=repr
)
def test_a_number_is_an_integer_without_a_sign(kind, wrong):
    names = fields(kind, int)
    changes = [
        (name, lambda memory, event: event if wrong == "an Event" else wrong) for name in names
    ]
    for name, answer in zip(names, refusals(kind, changes), strict=True):
        assert answer.startswith(f"{name} of a {kind} task"), (name, answer)


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("huge", [2**28, 2**32 - 16, 2**32 - 1])
def test_a_number_beyond_the_pieces_is_refused(kind, huge):
    names = [name for name in fields(kind, int) if (kind, name) not in FREE]
    changes = [(name, lambda memory, event: huge) for name in names]
    for name, answer in zip(names, refusals(kind, changes), strict=True):
        assert answer, name
        assert f"{kind} task" in answer or f"task '{kind} 0'" in answer, (name, answer)


@pytest.mark.parametrize("kind", TASKS)
def test_zero_runs_or_is_refused(kind):
    """An accepted zero must not make a task access invalid memory."""

    def run(world):
        for name in fields(kind, int):
            try:
                attempt(world, kind, (name, lambda memory, event: 0))
            except tokenyard.InvalidArgument as error:
                yield str(error)

    for answer in tokenyard.launch(lambda world: list(run(world)), ranks=1)[0]:
        assert f"{kind} task" in answer or "graph" in answer


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("wrong", [-1.0, 2.0, float("nan"), float("inf"), 1e300, "x", None, True])
def test_a_small_number_is_one(kind, wrong):
    names = fields(kind, float)
    for name, answer in zip(
        names, refusals(kind, [(name, lambda memory, event: wrong) for name in names]), strict=True
    ):
        assert answer.startswith(f"{name} of a {kind} task"), (name, answer)


@pytest.mark.parametrize("kind", ["expect_signals", "signal_often"])
@pytest.mark.parametrize("wrong", [0, None, "x", "piece"])
def test_an_event_is_an_event(kind, wrong):
    answers = refusals(
        kind, [("event", lambda memory, event: memory.local(4) if wrong == "piece" else wrong)]
    )
    assert answers[0].startswith(f"event of a {kind} task")
    assert "an Event" in answers[0]


@pytest.mark.parametrize("elements", [{"q_norm": 4}, {"k_norm": 4}, {"q_norm": 4, "k_norm": 3}])
def test_heads_have_both_norms_or_neither(elements):
    """Returns norms, each as long as a head."""

    def run(world, sizes):
        graph, memory = Graph(world), TensorMemory(world)
        args = dict(TASKS["attention"])
        for name, value in args.items():
            if isinstance(value, tuple):
                args[name] = memory.local(array_of(value[1], value[2]))
        for name, size in sizes.items():
            args[name] = memory.local(array_of(BF16, size))
        graph.task("attention", **args)

    with pytest.raises(tokenyard.InvalidArgument, match=r"(q|k)_norm of a attention task"):
        tokenyard.launch(run, ranks=1, args=(elements,))


def test_an_address_is_aligned_for_its_elements():
    def run(world):
        graph, memory = Graph(world), TensorMemory(world)
        graph.task("copy_to_peer", to=memory.local(8), words=1, **{"from": memory.local(8).at(2)})

    with pytest.raises(tokenyard.InvalidArgument, match=r"from of a copy_to_peer.*multiple of 4"):
        tokenyard.launch(run, ranks=1)


def test_a_stride_leads_nowhere_else():
    def run(world):
        graph, memory = Graph(world), TensorMemory(world)
        piece = memory.local(np.zeros(8, np.float32))
        graph.task("reduce", parts=piece, residual=None, y=memory.local(8), part_count=2, stride=7,
                   count=2)  # fmt: skip

    with pytest.raises(tokenyard.InvalidArgument, match=r"36 bytes \(2 rows of 8, 28 apart\)"):
        tokenyard.launch(run, ranks=1)


def test_a_dynamic_event_is_declared_where_an_argument_names_it():
    def run(world, declared):
        graph, memory = Graph(world), TensorMemory(world)
        event, other = (graph.event(name, dynamic_max=1) for name in ("one", "other"))
        graph.task("expect_signals", expects=[other] if declared == "other" else [],
                   count=memory.local(4), event=event)  # fmt: skip

    for declared in ("other", "none"):
        with pytest.raises(tokenyard.InvalidArgument, match="event of a expect_signals task"):
            tokenyard.launch(lambda world, d=declared: run(world, d), ranks=1)


def test_only_tasks_that_count_expect_signals():
    def run(world):
        graph = Graph(world)
        event = graph.event("e", dynamic_max=1)
        graph.task("reduce", expects=[event], parts=None, residual=None, y=None, part_count=0,
                   stride=0, count=0)  # fmt: skip

    with pytest.raises(tokenyard.InvalidArgument, match="expects of a reduce task"):
        tokenyard.launch(run, ranks=1)
