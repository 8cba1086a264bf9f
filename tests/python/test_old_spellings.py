"""Every old spelling works for one version like the new one, and names it."""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tokenyard

BF16 = ml_dtypes.bfloat16
TOKENS, HIDDEN, TOPK, EXPERTS = 4, 64, 2, 8
SIZES = dict(experts=EXPERTS, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS)
X = np.random.default_rng(1).standard_normal((TOKENS, HIDDEN), np.float32).astype(BF16)
IDS = np.array([[0, 5], [1, 4], [2, 7], [3, 6]])
WEIGHTS = np.full((TOKENS, TOPK), 0.5, np.float32)
OUT = np.empty((TOKENS, HIDDEN), BF16)


class Case:
    """A throughput exchange of one rank, and a dispatch's result."""

    def __init__(self, world: tokenyard.World) -> None:
        self.exchange = tokenyard.ExpertParallel(world, **SIZES)
        self.received = self.exchange.dispatch(X, IDS, WEIGHTS)
        self.y = self.received.x
        self.route = self.received.route
        self.beside = self.received.topk_weights


def rows_of(received: Any) -> list[np.ndarray]:
    """Rows, and their scales."""
    scales = [] if received.scales is None else [received.scales.view(np.uint8)]
    return [received.x.view(np.uint8), *scales]


def home_of(combined: Any) -> list[np.ndarray]:
    """Sums, and the weights beside them."""
    if isinstance(combined, tokenyard.Combined):
        return [combined.x, combined.topk_weights]
    return [combined]


def places_after(case: Case, call: Callable[..., Any]) -> list[list[int]]:
    call([1, 0, 2, 3, 4, 5, 6, 7])
    return [case.exchange.dispatch(X, IDS, WEIGHTS).tokens_per_expert]


THROUGHPUT: dict[str, tuple[Callable[[Case], Any], Callable[[Case], Any], str]] = {
    "as_fp8=True": (
        lambda case: rows_of(case.exchange.dispatch(X, IDS, as_fp8=True, scale_channels=32)),
        lambda case: rows_of(case.exchange.dispatch(X, IDS, rows="fp8", scale_channels=32)),
        "rows='fp8'",
    ),
    'as_fp8="float32"': (
        lambda case: rows_of(case.exchange.dispatch(X, IDS, as_fp8="float32", scale_channels=64)),
        lambda case: rows_of(case.exchange.dispatch(X, IDS, rows="fp8", scale_channels=64)),
        "rows='fp8'",
    ),
    'as_fp8="ue8m0"': (
        lambda case: rows_of(case.exchange.dispatch(X, IDS, as_fp8="ue8m0", scale_channels=32)),
        lambda case: rows_of(case.exchange.dispatch(X, IDS, rows="fp8_ue8m0", scale_channels=32)),
        "rows='fp8_ue8m0'",
    ),
    "as_fp8=False": (
        lambda case: rows_of(case.exchange.dispatch(X, IDS, as_fp8=False)),
        lambda case: rows_of(case.exchange.dispatch(X, IDS)),
        "rows=None",
    ),
    "as_fp8= of rows by expert": (
        lambda case: rows_of(
            case.exchange.dispatch_by_expert(X, IDS, as_fp8=True, scale_channels=32)[1]
        ),
        lambda case: rows_of(
            case.exchange.dispatch_by_expert(X, IDS, rows="fp8", scale_channels=32)[1]
        ),
        "rows='fp8'",
    ),
    "route=": (
        lambda case: home_of(case.exchange.combine(case.y, route=case.route)),
        lambda case: home_of(case.exchange.combine(case.y, case.received)),
        "combine(y, received)",
    ),
    "weights=": (
        lambda case: home_of(case.exchange.combine(case.y, case.route, weights=case.beside)),
        lambda case: home_of(case.exchange.combine(case.y, case.received, case.beside)),
        "topk_weights=",
    ),
    "route= and weights=": (
        lambda case: home_of(case.exchange.combine(y=case.y, route=case.route, weights=None)),
        lambda case: home_of(case.exchange.combine(case.y, case.received)),
        "combine(y, received)",
    ),
    "out as the fourth": (
        lambda case: home_of(case.exchange.combine(case.y, case.route, None, OUT.copy())),
        lambda case: home_of(case.exchange.combine(case.y, case.received, out=OUT.copy())),
        "out=",
    ),
    "expand": (
        lambda case: rows_of(case.exchange.expand(case.received, alignment=4)),
        lambda case: rows_of(case.exchange.group_by_expert(case.received, alignment=4)),
        "group_by_expert",
    ),
    "slots": (
        lambda case: [case.exchange.group_by_expert(case.received).slots],
        lambda case: [case.exchange.group_by_expert(case.received).row_of_choice],
        "row_of_choice",
    ),
    "output_buffer": (
        lambda case: [case.exchange.output_buffer(case.route, "float32").shape],
        lambda case: [case.exchange.combine_buffer(case.received, "float32").shape],
        "combine_buffer",
    ),
    "memory of an exchange": (
        lambda case: list(case.exchange.memory(tokens=2, rows_received=3, scale_words=1).values()),
        lambda case: list(
            tokenyard.ExpertParallel.memory(
                **SIZES, ranks=1, sms=case.exchange.sms, tokens=2, rows_received=3, scale_words=1
            )
        )[:4],
        "ExpertParallel.memory(",
    ),
    "place": (
        lambda case: places_after(case, case.exchange.place),
        lambda case: places_after(case, case.exchange.set_expert_map),
        "set_expert_map",
    ),
}


@pytest.mark.parametrize("name", THROUGHPUT)
def test_of_an_exchange_for_throughput(name: str) -> None:
    old, new, told = THROUGHPUT[name]

    def layer(world: tokenyard.World) -> None:
        case = Case(world)
        with pytest.warns(DeprecationWarning, match="is deprecated: use") as caught:
            before = old(case)
        assert any(told in str(warning.message) for warning in caught)
        assert {warning.filename for warning in caught} == {__file__}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            now = new(case)
        assert len(before) == len(now)
        for one, other in zip(before, now, strict=True):
            assert np.array_equal(one, other)

    tokenyard.launch(layer, ranks=1)


def test_what_a_dispatch_returned_and_its_route_are_alike() -> None:
    def layer(world: tokenyard.World) -> None:
        case = Case(world)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            of_received = case.exchange.combine(case.y, case.received, case.beside)
            of_route = case.exchange.combine(case.y, case.route, topk_weights=case.beside)
        assert np.array_equal(of_received.x, of_route.x)
        assert np.array_equal(of_received.topk_weights, of_route.topk_weights)
        assert case.exchange.combine_buffer(case.route).shape == case.y.shape

    tokenyard.launch(layer, ranks=1)


LOW_LATENCY: dict[str, Callable[[tokenyard.LowLatency, Any, Any], Any]] = {
    "weights first": lambda exchange, y, got: exchange.combine(y, WEIGHTS, got),
    "no weights first": lambda exchange, y, got: exchange.combine(y, None, got),
    "weights first, received named": lambda exchange, y, got: exchange.combine(
        y, WEIGHTS, received=got
    ),
    "weights first, and more": lambda exchange, y, got: exchange.combine(
        y, WEIGHTS, got, out=OUT.copy(), timeout=5
    ),
}


@pytest.mark.parametrize("name", LOW_LATENCY)
def test_of_an_exchange_at_low_latency(name: str) -> None:
    early = name == "no weights first"

    def layer(world: tokenyard.World) -> None:
        exchange = tokenyard.LowLatency(world, **SIZES)
        given = WEIGHTS if early else None
        got = exchange.dispatch(X, IDS, given, rows="bf16")
        with pytest.warns(DeprecationWarning, match="is deprecated: use") as caught:
            before = LOW_LATENCY[name](exchange, got.x, got)
        assert "combine(y, received, topk_weights)" in str(caught[0].message)
        assert {warning.filename for warning in caught} == {__file__}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = exchange.dispatch(X, IDS, topk_weights=given, rows="bf16")
            now = exchange.combine(got.x, got, None if early else WEIGHTS)
        exchange.wait()
        assert np.array_equal(before.x, now.x)
        assert np.array_equal(now.x, X)

    tokenyard.launch(layer, ranks=1)


def test_what_follows_the_received_rows_is_not_dropped() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = tokenyard.LowLatency(world, **SIZES)
        got = exchange.dispatch(X, IDS, rows="bf16")
        with (
            pytest.warns(DeprecationWarning, match="is deprecated: use"),
            pytest.raises(TypeError, match="positional arguments"),
        ):
            exchange.combine(got.x, WEIGHTS, got, OUT.copy())
        assert np.array_equal(exchange.combine(got.x, got, WEIGHTS).x, X)

    tokenyard.launch(layer, ranks=1)


def test_failed_ranks_were_the_masked_ones() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = tokenyard.LowLatency(world, **SIZES)
        with pytest.warns(DeprecationWarning, match="masked is deprecated: use failed_ranks"):
            assert exchange.masked() == exchange.failed_ranks() == []

    tokenyard.launch(layer, ranks=1)
    with pytest.warns(DeprecationWarning, match="MaskedRank is deprecated: use FailedRank"):
        assert tokenyard.MaskedRank is tokenyard.FailedRank
    with pytest.raises(AttributeError, match="NoSuchName"):
        tokenyard.NoSuchName  # noqa: B018


def test_memory_of_an_exchange_was_a_dictionary() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = tokenyard.ExpertParallel(world, **SIZES)
        with pytest.warns(DeprecationWarning, match="is deprecated: use"):
            memory = exchange.memory(tokens=2, rows_received=3)
        assert list(memory) == ["object", "peak", "kept", "kept_by_route"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert exchange.memory(**SIZES, ranks=1).kept_bytes >= memory["kept"]

    tokenyard.launch(layer, ranks=1)


def test_tensors_are_told_by_their_type_too() -> None:
    torch = pytest.importorskip("torch")

    def layer(world: tokenyard.World) -> None:
        exchange = tokenyard.LowLatency(world, **SIZES)
        x = torch.from_numpy(X.view(np.int16)).view(torch.bfloat16)
        got = exchange.dispatch(x, torch.from_numpy(IDS), rows="bf16")
        with pytest.warns(DeprecationWarning, match="is deprecated: use"):
            home = exchange.combine(got.x, torch.from_numpy(WEIGHTS), got)
        exchange.wait()
        assert torch.equal(home.x, x)

    tokenyard.launch(layer, ranks=1)


MISTAKES: dict[str, tuple[Callable[[Case], Any], str]] = {
    "as_fp8 and rows": (
        lambda case: case.exchange.dispatch(X, IDS, as_fp8=True, rows="fp8"),
        "rows",
    ),
    "no such cast": (lambda case: case.exchange.dispatch(X, IDS, as_fp8="fp4"), "as_fp8"),
    "an unhashable cast": (lambda case: case.exchange.dispatch(X, IDS, as_fp8=["fp8"]), "as_fp8"),
    "weights for a route": (lambda case: case.exchange.combine(case.y, case.beside), "received"),
    "a cast of float32": (
        lambda case: case.exchange.dispatch(X.astype(np.float32), IDS, rows="fp8"),
        "rows",
    ),
    "bf16 of float32": (
        lambda case: case.exchange.dispatch(X.astype(np.float32), IDS, rows="bf16"),
        "rows",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    call, argument = MISTAKES[name]

    def layer(world: tokenyard.World) -> None:
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            call(Case(world))
        assert caught.value.argument == argument

    tokenyard.launch(layer, ranks=1)


def test_rows_of_bf16_are_asked_for_alike() -> None:
    def layer(world: tokenyard.World) -> None:
        rows = Case(world).exchange.dispatch(X, IDS, WEIGHTS, rows="bf16")
        assert rows.x.dtype == BF16
        assert rows.scales is None
        assert (rows.x == X).all()

    tokenyard.launch(layer, ranks=1)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("low_latency", "LowLatency"),
        ("processes", "end_with_parent"),
        ("served_batch", "ServedBatch"),
    ],
)
def test_modules_that_have_moved(module: str, name: str) -> None:
    if module == "served_batch":
        pytest.importorskip("torch")
    sys.modules.pop(f"tokenyard.{module}", None)
    with pytest.warns(DeprecationWarning, match="has moved"):
        old = importlib.import_module(f"tokenyard.{module}")
    assert not getattr(old, name).__module__.endswith(f"tokenyard.{module}")


@pytest.mark.parametrize("kind", [tokenyard.ExpertParallel, tokenyard.LowLatency])
def test_help_shows_the_new_spelling(kind: Any) -> None:
    assert list(inspect.signature(kind.combine).parameters)[:4] == [
        "self",
        "y",
        "received",
        "topk_weights",
    ]
    dispatch = inspect.signature(kind.dispatch).parameters
    assert list(dispatch)[:4] == ["self", "x", "topk_idx", "topk_weights"]
    assert "rows" in dispatch
    assert "as_fp8" not in dispatch


def test_worlds_of_processes_had_calls_that_their_job_has() -> None:
    with pytest.warns(DeprecationWarning, match=r"World.connect is deprecated: use tokenyard.conn"):
        world = tokenyard.World.connect("127.0.0.1", 0, rank=0, size=1, arena_bytes=1 << 16)
    with pytest.warns(DeprecationWarning, match=r"World.lost is deprecated: use world.job.active_"):
        assert world.lost() == []
    with pytest.warns(DeprecationWarning, match=r"World.rebuild is deprecated: use world.job.reco"):
        rebuilt = world.rebuild([])
    rebuilt.barrier()
    assert rebuilt.job.active_ranks() == [0]
    rebuilt.close()


def test_threads_have_no_job_and_keep_the_calls_of_their_world() -> None:
    def rebuild(world: tokenyard.World) -> int:
        assert world.lost() == []
        return world.rebuild([]).size

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tokenyard.launch(rebuild, ranks=2, arena_bytes=1 << 16) == [2, 2]
