"""Arguments that cannot be right, each answered by an InvalidArgument that names it, on the rank
that gave it, before anything was launched; so the exchange goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tokenyard

BF16 = ml_dtypes.bfloat16
TOKENS, HIDDEN, TOPK, EXPERTS = 4, 64, 2, 8


def swapped(array: np.ndarray) -> np.ndarray:
    """The same numbers in the other byte order, which NumPy calls by the same name."""
    return array.astype(array.dtype.newbyteorder())


def read_only(*shape: int, dtype: Any = BF16) -> np.ndarray:
    array = np.zeros(shape, dtype)
    array.flags.writeable = False
    return array


class Case:
    """An exchange, and what one call of it gave."""

    def __init__(self, world: tokenyard.World) -> None:
        self.world = world
        self.exchange = tokenyard.ExpertParallel(
            world, experts=EXPERTS, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS
        )
        self.x = np.ones((TOKENS, HIDDEN), BF16)
        self.ids = np.tile(np.array([[0, 5]]), (TOKENS, 1))
        self.weights = np.ones((TOKENS, TOPK), np.float32)
        self.received = self.exchange.dispatch(self.x, self.ids, self.weights)

    def combine(self, y: Any = None, **options: Any) -> Any:
        given = self.received.x if y is None else y
        return self.exchange.combine(given, self.received.route, **options)

    def dispatch(self, **changes: Any) -> Any:
        given = dict(x=self.x, topk_idx=self.ids, topk_weights=self.weights) | changes
        return self.exchange.dispatch(**given)

    def combine_over_itself(self) -> Any:
        """Rows are read, here and by peers, while sums are written."""
        y = self.received.x.copy()
        return self.combine(y, out=y[:TOKENS])


CALLS: dict[str, tuple[Callable[[Case], Any], str]] = {
    "x swapped": (lambda case: case.dispatch(x=swapped(np.ones((4, 64), np.float32))), "x"),
    "ids swapped": (lambda case: case.dispatch(topk_idx=swapped(case.ids)), "topk_idx"),
    "weights swapped": (
        lambda case: case.dispatch(topk_weights=swapped(case.weights)),
        "topk_weights",
    ),
    "an unhashable cast": (lambda case: case.dispatch(as_fp8=["ue8m0"]), "as_fp8"),
    "out read-only": (lambda case: case.combine(out=read_only(TOKENS, HIDDEN)), "out"),
    "out over y": (lambda case: case.combine_over_itself(), "out"),
    "by_expert of another kind": (lambda case: case.combine(by_expert=case.received), "by_expert"),
    "expand of another kind": (lambda case: case.exchange.expand(case.received.x), "received"),
    "an alignment past all numbers": (
        lambda case: case.exchange.expand(case.received, alignment=1 << 31),
        "alignment",
    ),
    "an alignment past all numbers, as they come": (
        lambda case: case.exchange.dispatch_by_expert(
            case.x, case.ids, case.weights, alignment=1 << 31, rows_max=8
        ),
        "alignment",
    ),
    "places past all numbers": (
        lambda case: case.exchange.expand(case.received, rows_max=1 << 31),
        "rows_max",
    ),
    "a place that is text": (lambda case: case.exchange.place(["a"] * EXPERTS), "expert_at"),
    "a place too large": (lambda case: case.exchange.place([EXPERTS] * EXPERTS), "expert_at"),
    "a place below -1": (lambda case: case.exchange.place([-2] * EXPERTS), "expert_at"),
}


@pytest.mark.parametrize("name", CALLS)
def test_of_an_exchange(name: str) -> None:
    call, argument = CALLS[name]

    def layer(world: tokenyard.World) -> None:
        case = Case(world)
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            call(case)
        assert caught.value.argument == argument
        assert (case.combine(case.dispatch().x) == 2).all()  # Each token is on both ranks.

    tokenyard.launch(layer, ranks=2)


def test_results_that_differ_between_ranks_are_called_y() -> None:
    def layer(world: tokenyard.World) -> None:
        case = Case(world)
        y = case.received.x.astype(np.float32) if world.rank else case.received.x
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            case.combine(y)
        assert (caught.value.argument, caught.value.rank) == ("y", 1 - world.rank)

    tokenyard.launch(layer, ranks=2)


LOW_LATENCY: dict[str, tuple[Callable[..., Any], str]] = {
    "out over y": (lambda e, y, w, rows: e.combine(y, w, rows, out=y[0, :TOKENS]), "out"),
    "out read-only": (
        lambda e, y, w, rows: e.combine(y, w, rows, out=read_only(TOKENS, HIDDEN)),
        "out",
    ),
    "cycles read-only": (
        lambda e, y, w, rows: e.combine(y, w, rows, waited_cycles=read_only(1, dtype=np.int64)),
        "waited_cycles",
    ),
    "timeout": (lambda e, y, w, rows: e.combine(y, w, rows, timeout="soon"), "timeout"),
    "a buffer of nothing": (lambda e, y, w, rows: e.combine_buffer(None), "received"),
}


@pytest.mark.parametrize("name", LOW_LATENCY)
def test_of_a_low_latency_exchange(name: str) -> None:
    call, argument = LOW_LATENCY[name]

    def layer(world: tokenyard.World) -> None:
        exchange = tokenyard.LowLatency(
            world, experts=EXPERTS, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS
        )
        x, ids = np.ones((TOKENS, HIDDEN), BF16), np.tile(np.array([[0, 5]]), (TOKENS, 1))
        weights = np.full((TOKENS, TOPK), 0.5, np.float32)
        rows = exchange.dispatch(x, ids, rows="bf16")
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            call(exchange, rows.x, weights, rows)
        assert caught.value.argument == argument
        assert (exchange.combine(rows.x, weights, rows).x == 1).all()

    tokenyard.launch(layer, ranks=1)


def test_memory_of_no_ranks() -> None:
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        tokenyard.LowLatency.memory(experts=8, hidden=64, topk=2, tokens_max=4, ranks=0)
    assert caught.value.argument == "ranks"


@pytest.mark.parametrize("kind", [tokenyard.ExpertParallel, tokenyard.LowLatency])
def test_a_world_that_is_none(kind: Any) -> None:
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        kind(None, experts=8, hidden=64, topk=2, tokens_max=4)
    assert caught.value.argument == "world"


@pytest.mark.parametrize("argument", ["host", "job"])
@pytest.mark.parametrize("value", [None, 5, ""])
def test_names_that_a_world_cannot_have(argument: str, value: Any) -> None:
    given = dict(host="127.0.0.1", job="tests") | {argument: value}
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        tokenyard.World.connect(port=1, rank=0, size=1, **given)
    assert caught.value.argument == argument


def test_a_subclass_of_a_tensor_is_a_tensor() -> None:
    torch = pytest.importorskip("torch")

    class Named(torch.Tensor):
        pass

    def layer(world: tokenyard.World) -> None:
        case = Case(world)
        x = torch.ones(TOKENS, HIDDEN).as_subclass(Named)
        ids, weights = torch.from_numpy(case.ids), torch.from_numpy(case.weights)
        assert isinstance(case.dispatch(x=x, topk_idx=ids, topk_weights=weights).x, torch.Tensor)
        with pytest.raises(tokenyard.InvalidArgument, match="got Linear"):
            case.dispatch(x=torch.nn.Linear(1, 1))

    tokenyard.launch(layer, ranks=1)


def test_a_world_on_the_host_has_no_pool() -> None:
    world = tokenyard.World.connect("127.0.0.1", 0, rank=0, size=1)
    with world, pytest.raises(tokenyard.Unsupported):
        world.mem_pool()
