"""Calls in two halves: lifetimes of arrays that hooks use, and hooks that are never called."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
from test_low_latency import SIZES, given, there_and_back

import tokenyard


def test_hooks_keep_what_they_write() -> None:
    def program(world: tokenyard.World) -> None:
        exchange = tokenyard.LowLatency(world, **SIZES)
        x, topk_idx, weights = given(world.rank)
        total, waited = np.zeros(2, np.int32), np.zeros(2, np.int64)
        written = [weakref.ref(total), weakref.ref(waited)]
        got = exchange.dispatch(
            x, topk_idx, rows_total=total, waited_cycles=waited, return_recv_hook=True
        )
        del total, waited
        assert [array() is None for array in written] == [False, False]
        got.hook()
        waited = np.zeros(2, np.int64)
        written = [weakref.ref(waited)]
        y = exchange.combine_buffer(got)
        home = exchange.combine(y, got, weights, waited_cycles=waited, return_recv_hook=True)
        del waited
        assert written[0]() is not None
        home.hook()
        exchange.wait()

    tokenyard.launch(program, ranks=2)


@pytest.mark.parametrize("asked", [1, np.True_, 0, np.False_])
def test_a_hook_is_asked_for_by_whatever_is_true(asked: Any) -> None:
    def program(world: tokenyard.World) -> bool:
        exchange = tokenyard.LowLatency(world, **SIZES)
        return there_and_back(exchange, world.rank, 1, return_recv_hook=asked)

    assert tokenyard.launch(program, ranks=2) == [True, True]


def test_a_hook_that_is_dropped_ends_with_a_restart() -> None:
    def program(world: tokenyard.World) -> bool:
        exchange = tokenyard.LowLatency(world, **SIZES)
        x, topk_idx, _ = given(world.rank)
        exchange.dispatch(x, topk_idx, return_recv_hook=True)
        with pytest.raises(tokenyard.InvalidArgument, match="hook"):
            exchange.dispatch(x, topk_idx)
        exchange.wait()
        world.barrier("streams are drained")
        exchange.restart(1)
        world.barrier("all have restarted")
        fine = there_and_back(exchange, world.rank, 2)
        exchange.dispatch(x, topk_idx, return_recv_hook=True)
        exchange.close()
        return fine

    assert tokenyard.launch(program, ranks=2) == [True, True]


def test_batches_under_way_end_with_a_restart() -> None:
    def program(world: tokenyard.World) -> bool:
        exchange = tokenyard.LowLatency(world, **SIZES)
        x, topk_idx, weights = given(world.rank)
        got = exchange.dispatch(x, topk_idx, rows="bf16")
        sent = exchange.dispatch(x, topk_idx, rows="bf16", return_recv_hook=True)
        exchange.wait()
        world.barrier("streams are drained")
        exchange.restart(2)
        world.barrier("all have restarted")
        ended = "a batch that ended when ranks were unmasked or calls restarted"
        with pytest.raises(tokenyard.InvalidArgument, match=ended):
            exchange.combine(got.x, got, weights)
        with pytest.raises(tokenyard.InvalidArgument, match=ended):
            sent.hook()
        return there_and_back(exchange, world.rank, 2)

    assert tokenyard.launch(program, ranks=2) == [True, True]
