"""ExpertParallel's interface: kinds and lifetimes of arrays, reuse, and every wrong argument by
name. test_reference.py checks results."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tokenyard

TOKENS, HIDDEN, TOPK, EXPERTS = 6, 16, 2, 8


def make(world: tokenyard.World, **changes: Any) -> tokenyard.ExpertParallel:
    sizes = dict(experts=EXPERTS, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS) | changes
    return tokenyard.ExpertParallel(world, **sizes)


def inputs(rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rank)
    x = rng.standard_normal((TOKENS, HIDDEN)).astype(ml_dtypes.bfloat16)
    topk_idx = np.ascontiguousarray(rng.random((TOKENS, EXPERTS)).argsort(axis=1)[:, :TOPK])
    return x, topk_idx, rng.random((TOKENS, TOPK), np.float32)


def test_kinds_of_results() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        received = exchange.dispatch(*inputs(world.rank))
        rows = sum(received.rows_from)
        assert received.x.dtype == ml_dtypes.bfloat16
        assert received.x.shape == (rows, HIDDEN)
        assert received.topk_idx.dtype == np.int32
        assert received.topk_idx.shape == (rows, TOPK)
        assert received.topk_weights.dtype == np.float32
        assert received.source_token.dtype == np.int32
        assert received.source_token.shape == (rows,)
        assert len(received.tokens_per_expert) == EXPERTS // world.size
        assert received.route.tokens == TOKENS
        assert received.route.rows_received == rows
        assert repr(received.route) == f"Route(tokens={TOKENS}, rows_received={rows})"
        home = exchange.combine(received.x, received.route)
        assert home.dtype == ml_dtypes.bfloat16
        assert home.shape == (TOKENS, HIDDEN)
        assert exchange.sms >= 1
        exchange.wait()
        exchange.check()

    tokenyard.launch(layer, ranks=2)


def test_a_with_block_closes_an_exchange() -> None:
    def layer(world: tokenyard.World) -> None:
        sizes = dict(experts=EXPERTS, hidden=64, topk=TOPK, tokens_max=TOKENS)
        with make(world) as exchange, tokenyard.LowLatency(world, **sizes) as serving:
            exchange.dispatch(*inputs(world.rank))
        with pytest.raises(tokenyard.InvalidArgument, match="an open ExpertParallel"):
            exchange.dispatch(*inputs(world.rank))
        with pytest.raises(tokenyard.InvalidArgument, match="an open LowLatency"):
            serving.wait()
        if world.rank == 0:  # The other rank closes nothing, and is not waited for.
            with pytest.raises(KeyError), tokenyard.LowLatency(world, **sizes):
                raise KeyError
        else:
            tokenyard.LowLatency(world, **sizes)

    tokenyard.launch(layer, ranks=2)


def test_results_are_views_of_the_arena_and_nothing_is_copied() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        received = exchange.dispatch(*inputs(world.rank))
        assert not received.x.flags.owndata
        buffer = exchange.combine_buffer(received)
        assert not buffer.flags.owndata
        buffer[:] = received.x
        again = np.zeros((TOKENS, HIDDEN), ml_dtypes.bfloat16)
        assert exchange.combine(buffer, received.route, out=again) is again
        assert (again == exchange.combine(received.x, received.route)).all()

    tokenyard.launch(layer, ranks=2)


def test_views_outlive_exchange_and_world() -> None:
    def layer(world: tokenyard.World) -> tuple[np.ndarray, np.ndarray]:
        exchange = make(world)
        received = exchange.dispatch(*inputs(world.rank))
        copy = received.x.copy()
        exchange.close()
        world.barrier()
        return received.x, copy

    pairs = tokenyard.launch(layer, ranks=2)
    gc.collect()
    for view, copy in pairs:
        assert (view == copy).all()


def test_memory_comes_back_when_the_views_die() -> None:
    def layer(world: tokenyard.World) -> None:
        # The arena holds the rows of a few calls, not of a hundred.
        exchange = make(world, hidden=4096)
        x = np.zeros((TOKENS, 4096), ml_dtypes.bfloat16)
        _, topk_idx, topk_weights = inputs(world.rank)
        for _ in range(100):
            exchange.combine((got := exchange.dispatch(x, topk_idx, topk_weights)).x, got.route)

    tokenyard.launch(layer, ranks=2, arena_bytes=2 << 20)


def test_a_route_is_used_again() -> None:
    def layer(world: tokenyard.World) -> bool:
        exchange = make(world)
        x, topk_idx, topk_weights = inputs(world.rank)
        first = exchange.dispatch(x, topk_idx, topk_weights)
        second = exchange.dispatch(x + x, route=first.route)
        assert (second.x == first.x + first.x).all()
        assert (second.source_token == first.source_token).all()
        return (exchange.combine(second.x, second.route) != 0).any().item()

    assert all(tokenyard.launch(layer, ranks=2))


def test_weights_come_home() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        x, topk_idx, topk_weights = inputs(world.rank)
        received = exchange.dispatch(x, topk_idx, topk_weights)
        home = exchange.combine(received.x, received.route, received.topk_weights)
        assert isinstance(home, tokenyard.Combined)
        assert (home.topk_weights == topk_weights).all()

    tokenyard.launch(layer, ranks=2)


def _bad_x(x: np.ndarray) -> list[tuple[Any, str, str]]:
    odd = np.zeros(x.nbytes + 2, np.uint8)[2:].view(ml_dtypes.bfloat16).reshape(x.shape)
    return [
        (x.astype(np.float64), "dtype bfloat16", "dtype float64"),
        (x.view(np.uint16), "dtype bfloat16", "dtype uint16"),
        (x[:, :8], "[tokens, 16]", "[6, 8]"),
        (x[0], "[tokens, 16]", "[16]"),
        (np.concatenate([x, x], axis=1)[:, ::2], "C-contiguous", "gaps"),
        (x.tolist(), "NumPy array or a torch tensor", "list"),
        (None, "NumPy array or a torch tensor", "NoneType"),
        (odd, "aligned to 16 bytes", "0x"),
    ]


@pytest.mark.parametrize("case", range(8))
def test_a_wrong_x_is_named_with_both_values(case: int) -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        x, topk_idx, topk_weights = inputs(world.rank)
        wrong, expected, seen = _bad_x(x)[case]
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            exchange.dispatch(wrong, topk_idx, topk_weights)
        assert caught.value.argument == "x"
        assert expected in caught.value.expected
        assert seen in caught.value.seen
        assert expected in str(caught.value)
        assert seen in str(caught.value)
        # Nothing had been launched or sent: the object still works.
        received = exchange.dispatch(x, topk_idx, topk_weights)
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            exchange.combine(received.x.astype(np.float64), received.route)
        assert caught.value.argument == "y"

    tokenyard.launch(layer, ranks=1)


Change = Callable[[np.ndarray], Any]


@pytest.mark.parametrize(
    ("argument", "change", "expected"),
    [
        ("topk_idx", lambda a: a.astype(np.int16), "int32 or int64"),
        ("topk_idx", lambda a: a[:-1], "[6, 2]"),
        ("topk_idx", lambda a: np.asfortranarray(a), "C-contiguous"),
        ("topk_weights", lambda a: a.astype(np.float64), "float32"),
        ("topk_weights", lambda a: a[:, :1].copy(), "[6, 2]"),
        ("topk_weights", lambda a: a.tolist(), "NumPy array"),
        ("topk_idx", lambda a: None, "expert ids, or a route"),
    ],
)
def test_wrong_choices_are_named(argument: str, change: Change, expected: str) -> None:
    def layer(world: tokenyard.World) -> None:
        x, topk_idx, topk_weights = inputs(world.rank)
        arguments = dict(topk_idx=topk_idx, topk_weights=topk_weights)
        arguments[argument] = change(arguments[argument])
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            make(world).dispatch(x, **arguments)
        assert caught.value.argument == argument
        assert expected in caught.value.expected

    tokenyard.launch(layer, ranks=1)


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        (dict(hidden=12), "hidden"),
        (dict(hidden=0), "hidden"),
        (dict(experts=0), "experts"),
        (dict(topk=0), "topk"),
        (dict(topk=257, experts=512), "topk"),
        (dict(topk=-1), "topk"),
        (dict(tokens_max=0), "tokens_max"),
        (dict(tokens_max=2.5), "tokens_max"),
        (dict(sms=2**32), "sms"),
    ],
)
def test_wrong_sizes_are_named_on_all_ranks(changes: dict, argument: str) -> None:
    def layer(world: tokenyard.World) -> None:
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            make(world, **changes)
        assert caught.value.argument == argument

    tokenyard.launch(layer, ranks=2)


def test_sizes_that_differ_between_ranks_are_named_on_all() -> None:
    def layer(world: tokenyard.World) -> None:
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            make(world, hidden=16 if world.rank else 24)
        assert caught.value.argument == "hidden"
        assert "16" in str(caught.value)
        assert "24" in str(caught.value)

    tokenyard.launch(layer, ranks=2)


@pytest.mark.parametrize("wrong", [EXPERTS, -2, "twice"])
def test_an_id_that_cannot_be_is_named_on_all_ranks(wrong: int | str) -> None:
    def layer(world: tokenyard.World) -> None:
        x, topk_idx, topk_weights = inputs(world.rank)
        if world.rank == 1:
            topk_idx[4, 1] = topk_idx[4, 0] if wrong == "twice" else wrong
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            make(world).dispatch(x, topk_idx, topk_weights)
        assert caught.value.argument == "topk_idx"
        assert caught.value.rank == 1
        assert "token 4" in str(caught.value)

    tokenyard.launch(layer, ranks=2)


def test_too_many_tokens_are_refused_before_anything_is_sent() -> None:
    def layer(world: tokenyard.World) -> None:
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            make(world, tokens_max=TOKENS - 1).dispatch(*inputs(world.rank))
        assert caught.value.argument in ("tokens", "x")
        assert "6" in caught.value.seen

    tokenyard.launch(layer, ranks=2)


def test_a_route_and_choices_together_make_no_sense() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        x, topk_idx, topk_weights = inputs(world.rank)
        route = exchange.dispatch(x, topk_idx, topk_weights).route
        with pytest.raises(tokenyard.InvalidArgument, match="route"):
            exchange.dispatch(x, topk_idx, topk_weights, route=route)  # type: ignore[call-overload]
        with pytest.raises(tokenyard.InvalidArgument, match="received_tokens_max"):
            exchange.dispatch(x, route=route, received_tokens_max=8)  # type: ignore[call-overload]
        with pytest.raises(tokenyard.InvalidArgument, match="route"):
            exchange.combine(x, "a route")  # type: ignore[call-overload]

    tokenyard.launch(layer, ranks=1)


def test_a_rank_that_stays_away_is_named_with_the_phase() -> None:
    given_up = threading.Event()

    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        if world.rank == 1:
            assert given_up.wait(60)  # Still running.
            return
        with pytest.raises(tokenyard.PeerTimeout) as caught:
            exchange.dispatch(*inputs(world.rank))
        given_up.set()
        assert caught.value.rank == 1
        assert "dispatch" in caught.value.phase
        assert caught.value.waited_s >= 2

    tokenyard.launch(layer, ranks=2, timeout=2)


def test_who_comes_after_the_others_gave_up_gets_an_error_and_no_rows() -> None:
    """Their counts may have arrived before they gave up, but their rows never will."""
    given_up = [threading.Event(), threading.Event()]

    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        if world.rank == 1:
            assert given_up[0].wait(60)
        with pytest.raises(tokenyard.PeerTimeout) as caught:
            exchange.dispatch(*inputs(world.rank))
        given_up[world.rank].set()
        assert caught.value.rank == 1 - world.rank
        assert given_up[1].wait(60)  # Rank 0 is still running.

    tokenyard.launch(layer, ranks=2, timeout=2)


def exchange_between_hosts(world: tokenyard.World) -> None:
    exchange = make(world)
    received = exchange.dispatch(*inputs(world.rank))
    row = 0
    for source in range(world.size):
        x, topk_idx, _ = inputs(source)
        for token in range(TOKENS):
            here = topk_idx[token] // (EXPERTS // world.size) == world.rank
            if not here.any():
                continue
            assert (received.x[row] == x[token]).all()
            assert received.source_token[row] == token
            assert ((received.topk_idx[row] >= 0) == here).all()
            row += 1
    assert row == sum(received.rows_from)
    home = exchange.combine(received.x, received.route)
    x, topk_idx, _ = inputs(world.rank)
    copies = [len(set(choices // (EXPERTS // world.size))) for choices in topk_idx]
    # One or two copies: no sum is rounded.
    assert (home == (x * np.array(copies, x.dtype)[:, None]).astype(x.dtype)).all()
    exchange.wait()


@pytest.mark.parametrize("processes", [False, True])
def test_rows_travel_between_hosts_as_inside_one(processes: bool) -> None:
    """On two hosts of two ranks: each row arrives, in the order of sources and tokens. Threads have
    a simulated network between them, processes TCP."""
    tokenyard.launch(exchange_between_hosts, ranks=4, processes=processes, hosts=2)


def test_an_order_of_ranks_counts_between_hosts() -> None:
    """Of large results that cancel out, a small one between them remains only in one order."""

    def layer(world: tokenyard.World) -> None:
        exchange = tokenyard.ExpertParallel(world, experts=3, hidden=16, topk=3, tokens_max=2)
        x = np.zeros((2, 16), np.float32)
        received = exchange.dispatch(x, np.tile(np.arange(3), (2, 1)))
        y = np.full_like(received.x, [1e30, 1.0, -1e30][world.rank])
        order = np.array([[0, 2, 1], [0, 1, 2]], np.int32)
        home = exchange.combine(y, received.route, rank_order=order)
        exchange.wait()
        assert (home == np.array([[1.0], [0.0]], np.float32)).all()

    tokenyard.launch(layer, ranks=3, hosts=3)


@pytest.mark.parametrize("by_expert", [False, True])
def test_weights_may_be_left_out_and_are_1_then(by_expert: bool) -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        x, topk_idx, _ = inputs(world.rank)
        ones = np.ones((TOKENS, TOPK), np.float32)
        if by_expert:
            received, rows = exchange.dispatch_by_expert(x, topk_idx)
            assert (rows.weights == 1).all()
            assert (exchange.dispatch_by_expert(x, topk_idx, ones)[1].x == rows.x).all()
        else:
            received = exchange.dispatch(x, topk_idx)
        assert np.array_equal(received.topk_weights, received.topk_idx >= 0)

    tokenyard.launch(layer, ranks=2)


@pytest.mark.parametrize(("experts", "ranks"), [(8, 3), (2, 3), (7, 2)])
def test_experts_that_the_ranks_do_not_divide(experts: int, ranks: int) -> None:
    """8 experts on 3 ranks, as after a loss; 2 on 3, of which the last rank holds none."""
    shares = [
        range(part[0], part[-1] + 1) if len(part) else range(experts, experts)
        for part in np.array_split(np.arange(experts), ranks)
    ]

    def layer(world: tokenyard.World) -> None:
        exchange = make(world, experts=experts)
        mine = shares[world.rank]
        assert (exchange.first_expert, exchange.local_experts) == (mine.start, len(mine))
        everybody = np.tile(np.arange(TOKENS)[:, None] % experts, (1, TOPK))
        everybody[:, 1] = -1
        x = inputs(world.rank)[0]
        received = exchange.dispatch(x, everybody)
        counts = np.bincount(everybody[:, 0], minlength=experts)
        assert received.tokens_per_expert == [ranks * counts[expert] for expert in mine]
        assert np.array_equal(exchange.combine(received.x, received.route), x)
        rows = exchange.group_by_expert(received, alignment=4)
        assert len(rows.offsets) == len(mine) + 1
        home = exchange.combine(rows.x, received.route, by_expert=rows, weighted=True)
        assert np.array_equal(home, x)

    tokenyard.launch(layer, ranks=ranks)


def test_a_token_may_choose_256_experts() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world, experts=300, topk=256, hidden=32)
        rng = np.random.default_rng(world.rank)
        x = rng.integers(-8, 9, (TOKENS, 32)).astype(ml_dtypes.bfloat16)
        ids = np.ascontiguousarray(rng.random((TOKENS, 300)).argsort(axis=1)[:, :256])
        received, rows = exchange.dispatch_by_expert(x, ids)
        assert (received.topk_idx >= 0).sum() == len(rows.x)
        half = np.float32(0.5) * rows.x.astype(np.float32)
        sums = exchange.combine(
            half, received.route, out=np.empty((TOKENS, 32), np.float32), by_expert=rows
        )
        assert np.array_equal(sums, 128 * x.astype(np.float32))
        twice = ids.copy()
        twice[3, 255] = twice[3, 0]
        with pytest.raises(tokenyard.InvalidArgument, match="twice in token 3"):
            exchange.dispatch(x, twice if world.rank == 0 else ids)
        with pytest.raises(tokenyard.InvalidArgument, match="1 to 256"):
            make(world, experts=300, topk=257)

    tokenyard.launch(layer, ranks=3)
