"""Handles and tickets of many layers, kept until the backward pass in memory for few rows."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from deep_ep_batch import (
    EXPERTS,
    HIDDEN,
    RANKS,
    TOPK,
    equal,
    expected_rows,
    expected_sum,
    given,
    inputs,
    needs_torch,
    torch,
)

import tokenyard

if torch is not None:
    import deep_ep

    from tokenyard.moe import Exchange

LAYERS = 48
ARENA = 1 << 19


def layers_rows(rank: int) -> int:
    """Returns the bytes of the rows that a rank receives in all layers."""
    return LAYERS * expected_rows(rank)[0].numel() * 2


def test_arrays_beside_the_rows_keep_no_rows() -> None:
    def layer(world: tokenyard.World) -> None:
        sizes = dict(experts=2, hidden=4096, topk=1, tokens_max=16)
        exchange = tokenyard.ExpertParallel(world, **sizes)
        x = np.full((16, 4096), world.rank, np.float16)
        ids = (np.arange(16, dtype=np.int64) % 2)[:, None]
        weights = np.arange(16, dtype=np.float32)[:, None]
        memory = tokenyard.ExpertParallel.memory(
            **sizes, ranks=2, rows_received=16, dtype="float16"
        )
        assert memory.kept_bytes - memory.kept_by_route_bytes == 16 * 4096 * 2
        kept = []
        # Twice as many calls as fit.
        for _ in range(2 * (2 << 20) // memory.kept_bytes):
            received = exchange.dispatch(x, ids, weights)
            kept.append(
                (
                    received.route,
                    received.topk_idx,
                    received.topk_weights,
                    received.source_token,
                    received.rows_from_on_device,
                    exchange.dispatch(x, route=received.route).topk_idx,
                )
            )
        for route, local, of_rows, sources, counts, again in kept:
            assert route.rows_received == 16
            assert local.ravel().tolist() == [0] * 16 == again.ravel().tolist()
            mine = list(range(world.rank, 16, 2))
            assert sources.tolist() == mine * 2
            assert of_rows.ravel().tolist() == mine * 2
            assert counts.tolist() == [8, 8]

    tokenyard.launch(layer, ranks=2, arena_bytes=2 << 20)


def test_arrays_beside_the_rows_outlive_the_route() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = tokenyard.ExpertParallel(world, experts=1, hidden=8, topk=1, tokens_max=16)
        x = np.zeros((16, 8), np.float16)
        ids = np.zeros((16, 1), np.int64)
        first = exchange.dispatch(x, ids, np.full((16, 1), 3, np.float32))
        weights = exchange.dispatch(x, route=first.route).topk_weights
        del first
        others = [exchange.dispatch(x, ids, np.zeros((16, 1), np.float32)) for _ in range(8)]
        assert len(others) == 8
        assert weights.ravel().tolist() == [3] * 16

    tokenyard.launch(layer, ranks=1)


def test_rows_by_expert_that_are_forgotten() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = tokenyard.ExpertParallel(world, experts=2, hidden=4096, topk=1, tokens_max=16)
        x = np.ones((16, 4096), np.float16)
        ids = (np.arange(16, dtype=np.int64) % 2)[:, None]
        weights = np.ones((16, 1), np.float32)
        kept = []
        # More calls than fit.
        for _ in range(2 * (2 << 20) // (16 * 4096 * 2)):
            received = exchange.dispatch(x, ids, weights)
            rows = exchange.group_by_expert(received, alignment=8)
            seen = rows.x
            rows.forget_rows()
            kept.append((received.route, rows))
        assert seen.shape == (16, 4096)
        assert (seen == 1).all()
        y = np.full((16, 4096), 3, np.float16)
        for route, rows in kept:
            assert rows.rows == 16
            assert rows.offsets.tolist() == [0, 16]
            assert (exchange.combine(y, route, by_expert=rows) == 3).all()
        with pytest.raises(tokenyard.InvalidArgument, match="forget_rows"):
            _ = kept[0][1].x

    tokenyard.launch(layer, ranks=2, arena_bytes=2 << 20)


def test_rows_that_only_cycles_keep_make_room() -> None:
    """Makes a cycle, like an exception whose traceback holds the frame that holds it."""

    def layer(world: tokenyard.World) -> None:
        exchange = tokenyard.ExpertParallel(world, experts=1, hidden=4096, topk=1, tokens_max=32)
        x = np.zeros((32, 4096), np.float16)
        ids = np.zeros((32, 1), np.int64)
        weights = np.ones((32, 1), np.float32)

        def fail() -> None:
            rows = exchange.dispatch(x, ids, weights).x
            try:
                raise RuntimeError(f"a step that does not end, of {len(rows)} rows")
            except RuntimeError as error:
                kept.append(error)
            kept[-1].rows = kept[-1], rows  # type: ignore[attr-defined]

        kept: list[RuntimeError] = []
        gc.disable()
        try:
            for _ in range(20):
                fail()
                kept.clear()
        finally:
            gc.enable()
        held = []
        with pytest.raises(tokenyard.InvalidArgument, match="arena_bytes"):
            held += [exchange.dispatch(x, ids, weights) for _ in range(20)]

    tokenyard.launch(layer, ranks=1, arena_bytes=1 << 20)


@needs_torch
@pytest.mark.parametrize("num_worst_tokens", [0, 90])
def test_handles_of_deep_ep(run: Callable[..., None], num_worst_tokens: int) -> None:
    """Megatron's order: forward through all layers with one handle per layer, then backward."""

    def layer(world: tokenyard.World) -> None:
        buffer = deep_ep.Buffer(world, ARENA)
        x, topk_idx, topk_weights = given(world)
        _, _, per_expert, is_in_rank, _ = buffer.get_dispatch_layout(topk_idx, EXPERTS)
        rows_here = len(expected_rows(world.rank)[0])
        handles = []
        for _ in range(LAYERS):
            rows, _, weights, _, handle, event = buffer.dispatch(
                x,
                topk_idx=topk_idx,
                topk_weights=topk_weights,
                num_tokens_per_expert=per_expert,
                is_token_in_rank=is_in_rank,
                num_worst_tokens=num_worst_tokens,
                async_finish=True,
            )
            event.current_stream_wait()
            assert equal(rows[:rows_here], given_rows(world))
            home, _, event = buffer.combine(rows * 1, handle, async_finish=True)
            event.current_stream_wait()
            assert equal(home, expected_sum(x, topk_idx))
            handles.append((handle, weights))
        while handles:
            handle, weights = handles.pop()
            rows, *_, event = buffer.dispatch(x, handle=handle, async_finish=True)
            event.current_stream_wait()
            assert equal(rows[:rows_here], given_rows(world))
            home, home_weights, event = buffer.combine(
                rows * 1, handle, topk_weights=weights, async_finish=True
            )
            event.current_stream_wait()
            assert equal(home, expected_sum(x, topk_idx))
            assert equal(home_weights, topk_weights.where(topk_idx >= 0, 0))

    def given_rows(world: tokenyard.World) -> Any:
        return expected_rows(world.rank)[0].to("cpu" if world.device_index is None else "cuda")

    assert layers_rows(0) > ARENA
    run(layer, arena_bytes=ARENA)


@needs_torch
def test_handles_of_an_elastic_buffer(run: Callable[..., None]) -> None:
    def layer(world: tokenyard.World) -> None:
        buffer = deep_ep.ElasticBuffer(
            world, ARENA, num_max_tokens_per_rank=30, hidden=HIDDEN, num_topk=TOPK
        )
        x, topk_idx, topk_weights = given(world)
        handles = [
            buffer.dispatch(x, topk_idx, topk_weights, num_experts=EXPERTS)[3]
            for _ in range(LAYERS)
        ]
        while handles:
            handle = handles.pop()
            rows, *_ = buffer.dispatch(x, handle=handle)
            assert equal(buffer.combine(rows * 1, handle)[0], expected_sum(x, topk_idx))

    assert layers_rows(0) > ARENA
    run(layer, arena_bytes=ARENA)


@needs_torch
@pytest.mark.parametrize("device", ["host", "cuda"])
def test_tickets_of_autograd(device: str) -> None:
    """All layers of a step, two micro-batches of it before one backward pass, several steps."""
    if device == "cuda" and torch.cuda.device_count() < RANKS:
        pytest.skip("ranks that go backward need a GPU each")

    def train(world: tokenyard.World) -> None:
        if world.device_index is not None:
            torch.cuda.set_device(world.device_index)
        where = "cpu" if world.device_index is None else f"cuda:{world.device_index}"
        exchange = Exchange(
            tokenyard.ExpertParallel(
                world, experts=EXPERTS, hidden=HIDDEN, topk=TOPK, tokens_max=30
            )
        )
        tokens, topk_idx, weights = (tensor.to(where) for tensor in inputs(world.rank))
        went = torch.stack([((topk_idx // 4) == rank).any(1) for rank in range(RANKS)]).sum(0)
        mean = 1 / went.clamp(min=1)[:, None]
        for _ in range(3):
            losses = []
            x = tokens.float().requires_grad_()
            for _ in range(2):
                y = x
                for _ in range(LAYERS // 2):
                    there = exchange.dispatch(y, topk_idx, weights)
                    y = exchange.combine(there.x * 1, there) * mean
                losses.append(y.sum())
            sum(losses).backward()
            expected = 2.0 * (went > 0)[:, None].expand_as(tokens)
            assert torch.allclose(x.grad, expected)
            del losses, y, there, x
            gc.collect()

    assert 2 * layers_rows(0) > ARENA
    tokenyard.launch(train, ranks=RANKS, device=device, arena_bytes=ARENA)


@needs_torch
def test_handles_of_an_elastic_buffer_keep_no_rows_by_expert(run: Callable[..., None]) -> None:
    def layer(world: tokenyard.World) -> None:
        sizes = dict(num_max_tokens_per_rank=32, hidden=HIDDEN)
        buffer = deep_ep.ElasticBuffer(world, ARENA, **sizes)
        x, topk_idx, topk_weights = given(world)
        new = dict(num_experts=EXPERTS, expert_alignment=8, do_expand=True)
        handles, by_expert = [], 0
        for _ in range(LAYERS):
            rows, _, weights, handle, _ = buffer.dispatch(x, topk_idx, topk_weights, **new)
            by_expert += rows.numel() * rows.element_size()
            home, *_ = buffer.combine(rows * 1, handle)
            handles.append((handle, home, weights))
        assert by_expert > 2 * ARENA
        first = handles[0][1]
        while handles:
            handle, home, weights = handles.pop()
            rows, *_ = buffer.dispatch(x, handle=handle, do_expand=True)
            again, of_tokens, _ = buffer.combine(rows * 1, handle, weights)
            assert equal(again, home)
            assert equal(home, first)
            assert equal(of_tokens, topk_weights.where(topk_idx >= 0, 0))

    run(layer)
