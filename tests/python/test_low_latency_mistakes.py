"""Mistakes of one rank in the low-latency exchange, as users see them."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tokenyard

HIDDEN, TOPK, TOKENS, RANKS, EXPERTS = 64, 2, 6, 3, 7
WRONG = 1
SIZES = dict(experts=EXPERTS, hidden=HIDDEN, topk=TOPK, tokens_max=8)
BF16 = ml_dtypes.bfloat16


def given(rank: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng((seed, rank))
    x = rng.standard_normal((TOKENS, HIDDEN)).astype(BF16)
    topk_idx = rng.random((TOKENS, EXPERTS)).argsort(axis=1)[:, :TOPK].copy()
    return x, topk_idx, np.full((TOKENS, TOPK), 0.5, np.float32)


def next_batch_is_right(exchange: tokenyard.LowLatency, rank: int) -> bool:
    x, topk_idx, weights = given(rank, seed=2)
    got = exchange.dispatch(x, topk_idx, rows="bf16")
    home = exchange.combine(got.x, got, weights)
    exchange.wait()
    return bool((home.x == x).all()) and not home.lost.any() and exchange.failed_ranks() == []


def hear(exchange: tokenyard.LowLatency, hook: Any = None) -> list[tokenyard.InvalidArgument]:
    """Returns the errors of the hook and of waits."""
    heard: list[tokenyard.InvalidArgument] = []
    if hook is not None:
        try:
            hook()
        except tokenyard.InvalidArgument as error:
            heard.append(error)
    while True:
        try:
            exchange.wait()
        except tokenyard.InvalidArgument as error:
            heard.append(error)
        else:
            return heard


@pytest.mark.parametrize("hooks", [False, True])
def test_one_bad_id_is_missing_and_nothing_else(hooks: bool) -> None:
    def layer(world: tokenyard.World) -> bool:
        exchange = tokenyard.LowLatency(world, **SIZES)
        x, topk_idx, weights = given(world.rank)
        wrong = world.rank == WRONG
        if wrong:
            topk_idx[3, 1] = EXPERTS
            topk_idx[5] = -2
        got = exchange.dispatch(x, topk_idx, rows="bf16", return_recv_hook=hooks)
        if hooks:
            got.hook()
        home = exchange.combine(got.x, got, weights, return_recv_hook=hooks)
        heard = hear(exchange, home.hook)
        assert len(heard) == wrong
        for error in heard:
            assert error.argument == "topk_idx"
            assert error.expected == "experts 0 to 6, or -1"
            assert error.seen == "expert 7 in token 3, choice 1, of dispatch 1"
        share = ((topk_idx >= 0) & (topk_idx < EXPERTS)).sum(1, keepdims=True) / 2
        assert (home.x == (x.astype(np.float32) * share).astype(BF16)).all()
        assert not home.lost.any()
        return next_batch_is_right(exchange, world.rank)

    assert tokenyard.launch(layer, ranks=RANKS) == [True] * RANKS


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a dtype": (dict(x=np.ones((TOKENS, HIDDEN), np.float32)), "x"),
    "a shape": (dict(topk_idx=np.zeros((TOKENS, TOPK + 1), np.int64)), "topk_idx"),
    "too many tokens": (
        dict(x=np.ones((9, HIDDEN), BF16), topk_idx=np.zeros((9, TOPK), np.int64)),
        "tokens",
    ),
    "a missing tensor": (dict(x=None), "x"),
}


@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_rank_takes_part_without_tokens(name: str, hooks: bool) -> None:
    wrong, argument = REFUSED[name]

    def layer(world: tokenyard.World) -> bool:
        exchange = tokenyard.LowLatency(world, **SIZES)
        x, topk_idx, weights = given(world.rank)
        arguments = dict(x=x, topk_idx=topk_idx, rows="bf16", return_recv_hook=hooks)
        if world.rank == WRONG:
            with pytest.raises(tokenyard.RefusedBatch) as caught:
                exchange.dispatch(**(arguments | wrong))
            assert caught.value.argument == argument
            got, weights, x = caught.value.received, None, x[:0]
        else:
            got = exchange.dispatch(**arguments)
        if hooks:
            got.hook()
        home = exchange.combine(got.x, got, weights, return_recv_hook=hooks)
        assert hear(exchange, home.hook) == []
        assert (got.ranges[:, WRONG, 1] == 0).all()
        assert (home.x == x).all()
        assert not home.lost.any()
        return next_batch_is_right(exchange, world.rank)

    assert tokenyard.launch(layer, ranks=RANKS) == [True] * RANKS


def test_a_refusal_survives_its_process() -> None:
    error = tokenyard.RefusedBatch("x: no", argument="x", expected="a", seen="b", received=object())
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is tokenyard.RefusedBatch
    assert (str(copy), copy.argument, copy.received) == ("x: no", "x", None)


@pytest.mark.parametrize("what", ["rows", "use_logfmt"])
def test_a_rank_that_differs_is_named_on_every_rank(what: str) -> None:
    def layer(world: tokenyard.World) -> bool:
        exchange = tokenyard.LowLatency(world, **SIZES)
        x, topk_idx, weights = given(world.rank)
        # So that all ranks exchange sums with all.
        topk_idx[:3] = [[0, 3], [3, 6], [6, 0]]
        odd = world.rank == WRONG
        rows = "fp8" if odd and what == "rows" else "bf16"
        got = exchange.dispatch(x, topk_idx, rows=rows)
        y = got.x if rows == "bf16" else np.zeros(got.x.shape, BF16)
        home = exchange.combine(y, got, weights, use_logfmt=odd and what == "use_logfmt")
        heard = hear(exchange)
        others = {0, 2} if odd else {WRONG}
        assert {error.rank for error in heard} == others
        assert {error.argument for error in heard} == {what}
        assert {masked.rank for masked in exchange.failed_ranks()} == others
        assert {masked.why for masked in exchange.failed_ranks()} == {"differs"}
        home_of = np.array([0, 0, 0, 1, 1, 2, 2])[topk_idx]
        missing = np.isin(home_of, list(others)).sum(1)
        assert (home.lost == missing).all()
        if not odd:
            share = 1 - missing[:, None] / 2
            assert (home.x == (x.astype(np.float32) * share).astype(BF16)).all()
        world.barrier()
        exchange.clear_mask()
        world.barrier()
        return next_batch_is_right(exchange, world.rank)

    assert tokenyard.launch(layer, ranks=RANKS) == [True] * RANKS


@pytest.mark.parametrize("processes", [False, True])
def test_experts_that_ranks_do_not_divide(processes: bool) -> None:
    results = tokenyard.launch(uneven, ranks=RANKS, processes=processes)
    assert results == [(3, 0, True), (2, 3, True), (2, 5, True)]


def uneven(world: tokenyard.World) -> tuple[int, int, bool]:
    with contextlib.closing(tokenyard.LowLatency(world, **SIZES)) as exchange:
        fine = next_batch_is_right(exchange, world.rank)
        return exchange.local_experts, exchange.first_expert, fine


def test_what_cannot_be_says_what_can() -> None:
    def layer(world: tokenyard.World) -> None:
        for wrong, expected in (
            (dict(sms=1), "2 to "),
            (dict(topk=17, experts=32), "1 to 16"),
            (dict(experts=0), "at least one on each of 1 ranks"),
        ):
            with pytest.raises(tokenyard.InvalidArgument) as caught:
                tokenyard.LowLatency(world, **(SIZES | wrong))
            assert caught.value.argument == next(iter(wrong))
            assert caught.value.expected.startswith(expected)

    tokenyard.launch(layer, ranks=1)
    assert "at least 2" in tokenyard.LowLatency.__doc__
    assert "1 to 16" in tokenyard.LowLatency.__doc__
