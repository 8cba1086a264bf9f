"""Wrong arguments: each raises an InvalidArgument that names it, on the rank that passed it, before
anything is launched; the exchange continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ranks import world_alone

import tokenyard

BF16 = ml_dtypes.bfloat16
TOKENS, HIDDEN, TOPK, EXPERTS = 4, 64, 2, 8


def swapped(array: np.ndarray) -> np.ndarray:
    """Returns the same numbers in the other byte order, whose dtype has the same name."""
    return array.astype(array.dtype.newbyteorder())


def read_only(*shape: int, dtype: Any = BF16) -> np.ndarray:
    array = np.zeros(shape, dtype)
    array.flags.writeable = False
    return array


class Case:
    """An exchange, and the result of one call."""

    def __init__(self, world: tokenyard.World, experts: int = EXPERTS) -> None:
        self.world = world
        self.exchange = tokenyard.ExpertParallel(
            world, experts=experts, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS
        )
        self.x = np.ones((TOKENS, HIDDEN), BF16)
        self.ids = np.tile(np.array([[0, 5]]), (TOKENS, 1))
        self.weights = np.ones((TOKENS, TOPK), np.float32)
        self.received = self.exchange.dispatch(self.x, self.ids, self.weights)

    def combine(self, y: Any = None, **options: Any) -> Any:
        given = self.received.x if y is None else y
        return self.exchange.combine(given, self.received, **options)

    def dispatch(self, by_expert: bool = False, **changes: Any) -> Any:
        given = dict(x=self.x, topk_idx=self.ids, topk_weights=self.weights) | changes
        if by_expert:
            return self.exchange.dispatch_by_expert(**given)
        return self.exchange.dispatch(**given)

    def place(self, expert_at: Any) -> None:
        self.exchange.set_expert_map(expert_at)

    def combine_over_itself(self) -> Any:
        """Rows are read, here and by peers, while sums are written."""
        y = self.received.x.copy()
        return self.combine(y, out=y[:TOKENS])


def sums(dtype: Any, channels: int = HIDDEN) -> np.ndarray:
    """Memory for results."""
    return np.zeros((TOKENS, channels), dtype)


CALLS: dict[str, tuple[Callable[[Case], Any], str]] = {
    "x swapped": (lambda case: case.dispatch(x=swapped(np.ones((4, 64), np.float32))), "x"),
    "ids swapped": (lambda case: case.dispatch(topk_idx=swapped(case.ids)), "topk_idx"),
    "weights swapped": (
        lambda case: case.dispatch(topk_weights=swapped(case.weights)),
        "topk_weights",
    ),
    "an unhashable cast": (lambda case: case.dispatch(rows=["fp8"]), "rows"),
    "out read-only": (lambda case: case.combine(out=read_only(TOKENS, HIDDEN)), "out"),
    "out over y": (lambda case: case.combine_over_itself(), "out"),
    "out of another dtype": (lambda case: case.combine(out=sums(np.float16)), "out"),
    "out of bytes": (lambda case: case.combine(out=sums(np.uint8)), "out"),
    # Sums of four bytes would be written past the end of it.
    "out narrower than y": (
        lambda case: case.combine(case.received.x.astype(np.float32), out=sums(BF16)),
        "out",
    ),
    "out with gaps": (lambda case: case.combine(out=sums(BF16, HIDDEN * 2)[:, ::2]), "out"),
    "out of fewer tokens": (lambda case: case.combine(out=sums(BF16)[1:]), "out"),
    "x of float64": (lambda case: case.dispatch(x=case.x.astype(np.float64)), "x"),
    "x with gaps": (lambda case: case.dispatch(x=sums(BF16, HIDDEN * 2)[:, ::2]), "x"),
    "ids of float32": (lambda case: case.dispatch(topk_idx=case.weights), "topk_idx"),
    "weights of float64": (
        lambda case: case.dispatch(topk_weights=case.weights.astype(np.float64)),
        "topk_weights",
    ),
    "by_expert of another kind": (lambda case: case.combine(by_expert=case.received), "by_expert"),
    "grouping of another kind": (
        lambda case: case.exchange.group_by_expert(case.received.x),
        "received",
    ),
    "an alignment past all numbers": (
        lambda case: case.exchange.group_by_expert(case.received, alignment=1 << 31),
        "alignment",
    ),
    "an alignment past all numbers, as they come": (
        lambda case: case.exchange.dispatch_by_expert(
            case.x, case.ids, case.weights, alignment=1 << 31, rows_max=8
        ),
        "alignment",
    ),
    "places past all numbers": (
        lambda case: case.exchange.group_by_expert(case.received, rows_max=1 << 31),
        "rows_max",
    ),
    "a place that is text": (
        lambda case: case.exchange.set_expert_map(["a"] * EXPERTS),
        "expert_at",
    ),
    "a place too large": (
        lambda case: case.exchange.set_expert_map([EXPERTS] * EXPERTS),
        "expert_at",
    ),
    "a place below -1": (lambda case: case.place([-2] * EXPERTS), "expert_at"),
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
            case.combine(y, out=np.empty((TOKENS, HIDDEN), y.dtype))
        assert (caught.value.argument, caught.value.rank) == ("y", 1)

    tokenyard.launch(layer, ranks=2)


DIFFERENT_ROWS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a cast and none": (dict(), dict(rows="fp8", scale_channels=64), "x"),
    "two casts to as many words": (
        dict(rows="fp8", scale_channels=64),
        dict(rows="fp8_ue8m0", scale_channels=32),
        "scales",
    ),
    "two casts of other channels": (
        dict(rows="fp8_ue8m0", scale_channels=64),
        dict(rows="fp8_ue8m0", scale_channels=32),
        "scales",
    ),
    "rows of another dtype": (dict(), dict(x=np.ones((TOKENS, HIDDEN), np.float16)), "x"),
    "scales of another dtype": (
        dict(scales=np.ones((TOKENS, 2), np.float32)),
        dict(scales=np.ones((TOKENS, 2), np.int32)),
        "scales",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT_ROWS)
@pytest.mark.parametrize("by_expert", [False, True])
def test_rows_that_differ_between_ranks_are_named_alike_and_the_exchange_goes_on(
    name: str, by_expert: bool
) -> None:
    of_others, of_rank_2, argument = DIFFERENT_ROWS[name]

    def layer(world: tokenyard.World) -> str:
        case = Case(world, experts=12)
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            case.dispatch(by_expert=by_expert, **(of_rank_2 if world.rank == 2 else of_others))
        assert (caught.value.argument, caught.value.rank) == (argument, 2)
        assert (case.combine(case.dispatch().x) == 2).all()
        return str(caught.value)

    assert len(set(tokenyard.launch(layer, ranks=3))) == 1


def test_results_of_another_dtype_than_the_rows_are_refused_unless_out_has_it() -> None:
    def layer(world: tokenyard.World) -> None:
        case = Case(world)
        y = case.received.x.astype(np.float32)
        with pytest.raises(tokenyard.InvalidArgument, match="bfloat16 as the rows") as caught:
            case.combine(y)
        assert (caught.value.argument, caught.value.rank) == ("y", None)
        out = np.empty((TOKENS, HIDDEN), np.float32)
        assert case.combine(y, out=out) is out
        assert (out == 2).all()
        # Rows that are not summed do not determine the results' dtype.
        for dtype in (np.float32, np.float16, BF16):
            received = case.dispatch(rows="fp8", scale_channels=64)
            y = np.ones((received.route.rows_received, HIDDEN), dtype)
            assert case.exchange.combine(y, received.route).dtype == dtype

    tokenyard.launch(layer, ranks=2)


LOW_LATENCY: dict[str, tuple[Callable[..., Any], str]] = {
    "out over y": (lambda e, y, w, rows: e.combine(y, rows, w, out=y[0, :TOKENS]), "out"),
    "out read-only": (
        lambda e, y, w, rows: e.combine(y, rows, w, out=read_only(TOKENS, HIDDEN)),
        "out",
    ),
    "cycles read-only": (
        lambda e, y, w, rows: e.combine(y, rows, w, waited_cycles=read_only(1, dtype=np.int64)),
        "waited_cycles",
    ),
    "timeout": (lambda e, y, w, rows: e.combine(y, rows, w, timeout="soon"), "timeout"),
    "results of another dtype": (lambda e, y, w, rows: e.combine(y.astype(float), rows, w), "y"),
    "results of one expert": (lambda e, y, w, rows: e.combine(y[:1], rows, w), "y"),
    "results upside down": (lambda e, y, w, rows: e.combine(y[:, ::-1], rows, w), "y"),
    "weights in double": (
        lambda e, y, w, rows: e.combine(y, rows, w.astype(float)),
        "topk_weights",
    ),
    "a weight a token": (
        lambda e, y, w, rows: e.combine(y, rows, w[:, :1].copy()),
        "topk_weights",
    ),
    "out in FP32": (
        lambda e, y, w, rows: e.combine(y, rows, w, out=np.zeros((TOKENS, HIDDEN), np.float32)),
        "out",
    ),
    "a mask for two": (lambda e, y, w, rows: e.write_mask(np.zeros(2, np.int32)), "out"),
    "a mask of truths": (lambda e, y, w, rows: e.write_mask(np.zeros(1, bool)), "out"),
    "its own mask": (lambda e, y, w, rows: e.update_mask(0, True), "rank"),
    "a mask for nobody": (lambda e, y, w, rows: e.update_mask(-1, True), "rank"),
    "an epoch that was": (lambda e, y, w, rows: e.restart(0), "epoch"),
    "a buffer of nothing": (lambda e, y, w, rows: e.combine_buffer(None), "received"),
}


FP8 = ml_dtypes.float8_e4m3fn
SCALES = np.ones((TOKENS, 1), np.float32)
LOW_LATENCY_DISPATCH: dict[str, tuple[dict[str, Any], str]] = {
    "a list": (dict(x=[[1.0] * HIDDEN]), "x"),
    "x of three dimensions": (dict(x=np.ones((1, TOKENS, HIDDEN), BF16)), "x"),
    "x with gaps": (dict(x=np.ones((TOKENS, 2 * HIDDEN), BF16)[:, ::2]), "x"),
    "x wider": (dict(x=np.ones((TOKENS, 2 * HIDDEN), BF16)), "x"),
    "more tokens than tokens_max": (
        dict(x=np.ones((TOKENS + 1, HIDDEN), BF16), topk_idx=np.zeros((TOKENS + 1, TOPK), int)),
        "tokens",
    ),
    "FP8 without scales": (dict(x=np.ones((TOKENS, HIDDEN), FP8)), "x"),
    "E5M2": (dict(x=np.ones((TOKENS, HIDDEN), ml_dtypes.float8_e5m2), scales=SCALES), "x"),
    "BF16 with scales": (dict(scales=SCALES), "x"),
    "scales of BF16 rows": (
        dict(x=np.ones((TOKENS, HIDDEN), FP8), scales=SCALES, rows="bf16"),
        "scales",
    ),
    "too many scales": (
        dict(x=np.ones((TOKENS, HIDDEN), FP8), scales=np.ones((TOKENS, 2), np.float32)),
        "scales",
    ),
    "scales for exponents": (
        dict(x=np.ones((TOKENS, HIDDEN), FP8), scales=SCALES, rows="fp8_ue8m0"),
        "scales",
    ),
    "ids of fewer tokens": (dict(topk_idx=np.zeros((TOKENS - 1, TOPK), int)), "topk_idx"),
    "more picks": (dict(topk_idx=np.zeros((TOKENS, TOPK + 1), int)), "topk_idx"),
    "ids that are not whole": (dict(topk_idx=np.zeros((TOKENS, TOPK))), "topk_idx"),
    "ids in columns": (dict(topk_idx=np.zeros((TOPK, TOKENS), int).T), "topk_idx"),
    "no ids": (dict(topk_idx=None), "topk_idx"),
    "rows of another kind": (dict(rows=8), "rows"),
    "one active rank": (dict(active_ranks=[True]), "active_ranks"),
    "no list of active ranks": (dict(active_ranks=2), "active_ranks"),
    "not itself active": (dict(active_ranks=[False, False]), "active_ranks"),
    "no time": (dict(timeout=0), "timeout"),
    "less than a nanosecond": (dict(timeout=1e-12), "timeout"),
    "time that is no number": (dict(timeout=float("nan")), "timeout"),
    "one multiprocessor": (dict(sms=1), "sms"),
    "more than there are": (dict(sms=100_000), "sms"),
    "rows counted in 64 bits": (dict(rows_total=np.zeros(EXPERTS // 2, np.int64)), "rows_total"),
    "rows of all experts": (dict(rows_total=np.zeros(EXPERTS, np.int32)), "rows_total"),
    "cycles of pairs of ranks": (dict(waited_cycles=np.zeros((2, 2), np.int64)), "waited_cycles"),
}


@pytest.mark.parametrize("name", LOW_LATENCY_DISPATCH)
def test_of_a_low_latency_dispatch(name: str) -> None:
    """Only one rank's argument is wrong: it raises at once, and takes part without tokens.

    So the other rank does not wait. If there is no format to take part in, it repeats the call.
    """
    wrong, argument = LOW_LATENCY_DISPATCH[name]
    rows = wrong.get("rows", "bf16") if argument != "rows" else "bf16"

    def layer(world: tokenyard.World) -> None:
        exchange = tokenyard.LowLatency(
            world, experts=EXPERTS, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS
        )
        right = dict(x=np.ones((TOKENS, HIDDEN), BF16), topk_idx=np.array([[0, 5]] * TOKENS))
        refused = None
        if world.rank == 0:
            with pytest.raises(tokenyard.InvalidArgument) as caught:
                exchange.dispatch(**(right | dict(rows=rows) | wrong))
            assert caught.value.argument == argument
            refused = getattr(caught.value, "received", None)
            assert (refused is None) == (argument == "rows")
        got = refused or exchange.dispatch(**right, rows=rows)
        exchange.wait()
        assert (got.counts != 0).sum() == 1
        assert got.counts.sum() == (TOKENS if argument != "rows" else 2 * TOKENS)
        weights = None if refused else np.full((TOKENS, TOPK), 0.5, np.float32)
        home = exchange.combine(np.ones(got.x.shape, BF16), got, weights)
        exchange.wait()
        assert home.x.shape == (0 if refused else TOKENS, HIDDEN)
        assert (home.x == 1).all()
        assert not home.lost.any()
        assert exchange.failed_ranks() == []

    tokenyard.launch(layer, ranks=2)


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
        assert (exchange.combine(rows.x, rows, weights).x == 1).all()

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


@pytest.mark.filterwarnings("ignore:World.connect is deprecated")
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
    with world_alone() as world, pytest.raises(tokenyard.Unsupported):
        world.mem_pool()
