"""ExpertParallel's options beyond BF16 rows: formats, layouts, places, and every wrong argument by
name. test_reference.py checks results."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tokenyard

TOKENS, HIDDEN, TOPK, EXPERTS = 6, 64, 2, 8


def make(world: tokenyard.World, **changes: Any) -> tokenyard.ExpertParallel:
    sizes = dict(experts=EXPERTS, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS) | changes
    return tokenyard.ExpertParallel(world, **sizes)


def choices(rank: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rank)
    topk_idx = np.ascontiguousarray(rng.random((TOKENS, EXPERTS)).argsort(axis=1)[:, :TOPK])
    return topk_idx, rng.random((TOKENS, TOPK), np.float32)


def values(rank: int) -> np.ndarray:
    return np.random.default_rng(rank + 9).standard_normal((TOKENS, HIDDEN), np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rows_come_and_go_in_their_dtype(dtype: Any) -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        x = values(world.rank).astype(dtype)
        received = exchange.dispatch(x, *choices(world.rank))
        assert received.x.dtype == dtype
        assert received.scales is None
        buffer = exchange.combine_buffer(received.route, np.dtype(dtype).name)
        assert buffer.dtype == dtype
        buffer[:] = received.x
        home = exchange.combine(buffer, received.route, bias=(x, x))
        ranks = np.array(
            [len(set(ids // (EXPERTS // world.size))) for ids in choices(world.rank)[0]]
        )
        expected = x.astype(np.float32) * (ranks[:, None] + 2)
        assert home.dtype == dtype
        assert np.allclose(home.astype(np.float32), expected, rtol=2**-7)

    tokenyard.launch(layer, ranks=2)


def test_scales_by_columns_are_transposed_views() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        x = np.zeros((TOKENS, HIDDEN), ml_dtypes.float8_e4m3fn)
        scales = np.arange(TOKENS * 3, dtype=np.float32).reshape(TOKENS, 3)
        by_rows = exchange.dispatch(x, *choices(world.rank), scales=scales)
        assert by_rows.scales is not None
        assert by_rows.scales.shape == (len(by_rows.x), 3)
        by_columns = exchange.dispatch(
            x, route=by_rows.route, scales=scales, scales_by_columns=True
        )
        assert by_columns.scales is not None
        assert (by_columns.scales == by_rows.scales).all()
        assert by_columns.scales.strides[0] == 4
        assert by_columns.scales.strides[1] % 16 == 0

    tokenyard.launch(layer, ranks=2)


def test_rows_by_expert_and_home() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        received = exchange.dispatch(values(world.rank), *choices(world.rank))
        rows = exchange.group_by_expert(received, alignment=4)
        assert rows.first_rows == rows.offsets.tolist()
        assert all(first % 4 == 0 for first in rows.first_rows)
        assert (rows.x[rows.row_of < 0] == 0).all()
        assert (rows.x[rows.row_of >= 0] == received.x[rows.row_of[rows.row_of >= 0]]).all()
        home = exchange.combine(rows.x, received.route, by_expert=rows, weighted=True)
        weights = choices(world.rank)[1].sum(axis=1, keepdims=True)
        assert np.allclose(home, values(world.rank) * weights, rtol=1e-5, atol=1e-6)

    tokenyard.launch(layer, ranks=2)


def test_padding_may_stay_as_it_is() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        x, given = values(world.rank), choices(world.rank)
        received = exchange.dispatch(x, *given)
        cleared = exchange.group_by_expert(received, alignment=4)
        own = cleared.row_of >= 0
        assert not own.all()
        rows = exchange.group_by_expert(received, alignment=4, clear_padding=False)
        _, at_once = exchange.dispatch_by_expert(x, *given, alignment=4, clear_padding=False)
        for left in (rows, at_once):
            assert (left.x[own] == cleared.x[own]).all()
            for name in ("offsets", "row_of", "weights", "row_of_choice"):
                assert (getattr(left, name) == getattr(cleared, name)).all()

    tokenyard.launch(layer, ranks=2)


def test_rows_grouped_as_they_come_are_those_grouped_after() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        x, given = values(world.rank), choices(world.rank)
        after = exchange.group_by_expert(exchange.dispatch(x, *given), alignment=4)
        received, rows = exchange.dispatch_by_expert(x, *given, alignment=4)
        assert rows.first_rows == after.first_rows
        for name in ("x", "offsets", "row_of", "weights", "row_of_choice"):
            assert (getattr(rows, name) == getattr(after, name)).all()
        with pytest.raises(tokenyard.InvalidArgument, match="ExpertRows"):
            _ = received.x
        home = exchange.combine(rows.x, received.route, by_expert=rows)
        assert (home == exchange.combine(after.x, received.route, by_expert=rows)).all()
        with pytest.raises(tokenyard.InvalidArgument, match="rows_max"):
            exchange.dispatch_by_expert(x, *given, rows_max=1)

    tokenyard.launch(layer, ranks=2)


def test_places_are_marked_and_nobody_waits() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        exchange.trace_calls()
        received = exchange.dispatch(
            values(world.rank), *choices(world.rank), received_tokens_max=2 * TOKENS + 3
        )
        exchange.wait()
        rows = int(received.rows_from_on_device.sum())
        assert received.x.shape == (2 * TOKENS + 3, HIDDEN)
        assert (received.source_token[rows:] == -1).all()
        assert (received.source_token[:rows] >= 0).all()
        assert exchange.load.tokens_per_expert == received.tokens_per_expert_on_device.tolist()
        assert len(exchange.load.waited_us) == world.size
        assert exchange.last_trace()[0].name == "begun"

    tokenyard.launch(layer, ranks=2)


def test_a_trace_is_written_for_perfetto(tmp_path: Path) -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        exchange.trace_calls()
        exchange.dispatch(values(world.rank), *choices(world.rank))
        exchange.wait()
        exchange.write_trace(tmp_path / f"{world.rank}.json")

    tokenyard.launch(layer, ranks=2)
    for rank in range(2):
        events = json.loads((tmp_path / f"{rank}.json").read_text())["traceEvents"]
        assert {event["name"] for event in events} >= {"until greeted", "until moved"}


def test_experts_live_where_they_are_placed() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        # Four experts: 0 and 1 twice, rank 1 holds one place more than rank 0.
        exchange.set_expert_map([0, 2, 1, -1, 3, 0, 1, -1])
        topk_idx = np.tile([0, 3], (TOKENS, 1))
        weights = np.ones((TOKENS, TOPK), np.float32)
        received = exchange.dispatch(values(world.rank), topk_idx, weights)
        half, whole = TOKENS, 2 * TOKENS
        expected = [[half, 0, 0, 0], [whole, half, 0, 0]]
        assert received.tokens_per_expert == expected[world.rank]

    tokenyard.launch(layer, ranks=2)


def predicted(**changed: Any) -> tokenyard.DispatchMemory:
    sizes = dict(experts=EXPERTS, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS)
    return tokenyard.ExpertParallel.memory(**(sizes | dict(ranks=2, dtype="float32") | changed))


def test_memory_is_predicted() -> None:
    memory = predicted(rows_received=5)
    assert memory.arena_bytes > 0
    assert memory.peak_bytes > memory.kept_bytes > 5 * HIDDEN * 4
    assert memory.kept_bytes > memory.kept_by_route_bytes > 0
    assert predicted(rows_received=6).kept_bytes > memory.kept_bytes
    assert predicted() == predicted(tokens=TOKENS, rows_received=2 * TOKENS)
    between = predicted(hosts=2)
    assert memory.network_bytes == 0 < between.network_bytes
    assert between.network_bytes < predicted(hosts=2, ring_rows=65536).network_bytes


def test_memory_of_sizes_that_cannot_be_is_refused() -> None:
    for argument, wrong in [
        ("ranks", dict(ranks=0)),
        ("hidden", dict(hidden=12)),
        ("tokens", dict(tokens=TOKENS + 1)),
        ("rows_received", dict(rows_received=2 * TOKENS + 1)),
        ("row_bytes", dict(dtype="uint8", row_bytes=8)),
        ("dtype", dict(dtype="float64")),
    ]:
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            predicted(**wrong)
        assert caught.value.argument == argument


def test_a_failed_exchange_names_the_rank_that_it_has_failed_for() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        assert exchange.failed_ranks() == []
        if world.rank == 1:
            time.sleep(3)  # Silent, and not gone, until rank 0 has given up.
            return
        with pytest.raises(tokenyard.PeerTimeout):
            exchange.dispatch(values(world.rank), *choices(world.rank))
        (failed,) = exchange.failed_ranks()
        assert (failed.rank, failed.why) == (1, "timeout")
        assert failed.phase.startswith("dispatch: ")
        assert failed.waited_s > 0
        assert str(failed).startswith("rank 1 did not answer")
        assert isinstance(failed, tokenyard.FailedRank)

    tokenyard.launch(layer, ranks=2, timeout=1)


def test_an_arena_that_is_too_small_says_how_much_was_asked_for() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world, tokens_max=4096)
        bound = predicted(tokens_max=4096, tokens=TOKENS).peak_bytes
        with pytest.raises(tokenyard.InvalidArgument, match="arena_bytes") as caught:
            exchange.dispatch(values(world.rank), *choices(world.rank))
        assert caught.value.argument == "arena_bytes"
        asked = int("".join(filter(str.isdigit, caught.value.expected)))
        assert bound / 2 < asked <= bound

    tokenyard.launch(layer, ranks=2, arena_bytes=1 << 20)


@pytest.mark.parametrize("hosts", [1, 2])
def test_an_arena_is_released_and_restored(hosts: int) -> None:
    def layer(world: tokenyard.World) -> None:
        def there_and_back() -> None:
            exchange = make(world)
            received = exchange.dispatch(values(world.rank), *choices(world.rank))
            with pytest.raises(tokenyard.InvalidArgument, match="arena"):
                world.release_arena()
            exchange.combine(received.x, received.route)
            exchange.close()

        with pytest.raises(tokenyard.InvalidArgument, match="released"):
            world.restore_arena()
        for _ in range(3):
            there_and_back()
            world.release_arena()
            with pytest.raises(tokenyard.InvalidArgument, match="arena_bytes"):
                make(world, experts=4096)
            with pytest.raises(tokenyard.InvalidArgument, match="released"):
                world.release_arena()
            world.restore_arena()

    tokenyard.launch(layer, ranks=2, hosts=hosts, arena_bytes=8 << 20)


def test_an_arena_that_one_rank_still_needs_is_kept_on_all() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        received = exchange.dispatch(values(world.rank), *choices(world.rank))
        exchange.combine(received.x, received.route)
        exchange.wait()
        exchange.close()
        if world.rank != 1:
            received = None
        with pytest.raises(tokenyard.InvalidArgument, match="arena on rank 1") as refused:
            world.release_arena()
        assert refused.value.rank == 1
        received = None
        world.release_arena()
        world.restore_arena()

    tokenyard.launch(layer, ranks=2, arena_bytes=8 << 20, timeout=20)


def test_nan_and_infinities_pass() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        x = values(world.rank)
        x[0, 0], x[1, 1], x[2, 2] = np.nan, np.inf, -np.inf
        received = exchange.dispatch(x, *choices(world.rank))
        home = exchange.combine(received.x, received.route)
        assert np.isnan(home[0, 0])
        assert (home[1, 1], home[2, 2]) == (np.inf, -np.inf)
        assert np.isfinite(home).sum() == home.size - 3

    tokenyard.launch(layer, ranks=2)


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("again", [False, True])
def test_a_watcher_is_told_who_has_come(again: bool, hosts: int) -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        received = exchange.dispatch(values(world.rank), *choices(world.rank))
        assert received.sources_ready is None
        assert received.experts_ready is None
        which = dict(route=received.route) if again else {}
        given = () if again else choices(world.rank)
        watched = exchange.dispatch(values(world.rank), *given, watcher=0, **which)
        assert watched.sources_ready is not None
        assert watched.sources_ready.tolist() == [1] * world.size
        assert watched.experts_ready is not None
        assert watched.experts_ready.tolist() == [1] * (EXPERTS // world.size)
        watched.record_stream(0)

    tokenyard.launch(layer, ranks=2, hosts=hosts)


def test_several_exchanges_of_a_process_and_calls_of_one_cross() -> None:
    """Two exchanges, and two dispatches of each before either is combined."""

    def layer(world: tokenyard.World) -> None:
        exchanges = [make(world), make(world, experts=2 * EXPERTS)]
        x = values(world.rank)
        sent = [
            (exchange, factor, exchange.dispatch(factor * x, *choices(world.rank)))
            for factor in (1, 2)
            for exchange in exchanges
        ]
        for exchange, factor, received in reversed(sent):
            home = exchange.combine(received.x, received.route)
            ranks = [
                len(set(ids // (exchange.experts // world.size))) for ids in choices(world.rank)[0]
            ]
            assert np.array_equal(home, factor * x * np.array(ranks, np.float32)[:, None])

    tokenyard.launch(layer, ranks=2)


def test_sums_are_taken_in_the_order_that_is_asked_for() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world, experts=world.size, topk=world.size)
        everywhere = np.tile(np.arange(world.size), (TOKENS, 1))
        weights = np.ones((TOKENS, world.size), np.float32)
        received = exchange.dispatch(values(world.rank), everywhere, weights)
        y = np.full(received.x.shape, [2.0**24, 1, -(2.0**24)][world.rank], np.float32)
        order = np.array([[0, 1, 2], [0, 2, 1], [1, 0, 2]] * 2, np.int32)
        home = exchange.combine(y, received.route, rank_order=order)
        # 1 is lost beside 2**24, unless that has gone before.
        assert home[:, 0].tolist() == [0, 1, 0] * 2
        lost = exchange.combine(y, received.route, rank_order=np.full_like(order, world.size))
        assert (lost == 0).all()

    tokenyard.launch(layer, ranks=3)


def test_the_number_of_multiprocessors_has_a_reason() -> None:
    def layer(world: tokenyard.World) -> None:
        assert str(make(world).sms) in make(world).sms_reason
        assert make(world, sms=3).sms_reason == "3, as asked for"

    tokenyard.launch(layer, ranks=1)


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"rows": "fp4"}, "rows"),
        ({"rows": "fp8", "scale_channels": 24}, "scale_channels"),
        ({"scales": np.zeros((TOKENS, 3), np.uint8)}, "scales"),
        ({"scales": np.zeros((TOKENS + 1, 3), np.float32)}, "scales"),
        ({"scales": np.zeros((TOKENS, 3), np.float64)}, "scales"),
        ({"sms": 1000}, "sms"),
        ({"received_tokens_max": -1}, "received_tokens_max"),
    ],
)
def test_wrong_arguments_are_named(changes: dict[str, Any], argument: str) -> None:
    def layer(world: tokenyard.World) -> None:
        x = values(world.rank).astype(ml_dtypes.bfloat16)
        with pytest.raises(tokenyard.InvalidArgument) as error:
            make(world).dispatch(x, *choices(world.rank), **changes)
        assert error.value.argument == argument

    tokenyard.launch(layer, ranks=1)


def test_opaque_rows_are_of_any_width() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        x = np.random.default_rng(world.rank).integers(0, 256, (TOKENS, 48), np.uint8)
        received = exchange.dispatch(x, *choices(world.rank))
        assert received.x.shape[1] == 48
        with pytest.raises(tokenyard.InvalidArgument) as error:
            exchange.dispatch(x[:, :40].copy(), *choices(world.rank))
        assert error.value.argument == "row_bytes"
        with pytest.raises(tokenyard.InvalidArgument) as error:
            exchange.combine(received.x, received.route)
        assert error.value.argument == "y"

    tokenyard.launch(layer, ranks=2)
