"""The deep_ep package's masks: set by the caller, and of ranks that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from deep_ep_batch import (
    EXPERTS,
    HIDDEN,
    LARGEST,
    LOCAL,
    RANKS,
    expected_counts,
    given,
    inputs,
    needs_torch,
    run_on,
    serving_buffer_of,
    torch,
)

import tokenyard

pytestmark = needs_torch


def fleet_inputs(rank: int, ranks: int) -> tuple[Any, Any, Any]:
    """Returns any rank's input, for any number of ranks: each rank chooses each expert."""
    generator = torch.Generator("cpu").manual_seed(10 * ranks + rank)
    tokens = 24 - 4 * rank
    x = torch.randint(-8, 9, (tokens, HIDDEN), generator=generator).to(torch.bfloat16)
    picks = torch.rand(tokens, EXPERTS, generator=generator).argsort(1)[:, :4].contiguous()
    picks[torch.rand(tokens, 4, generator=generator) < 0.1] = -1
    return x, picks, torch.rand(tokens, 4, generator=generator)


def test_masks(run: Callable[..., None], request: pytest.FixtureRequest) -> None:
    if "cuda" in request.node.name and torch.cuda.device_count() < RANKS:
        pytest.skip("ranks that share a GPU launch together, so none can stay away")

    def layer(world: tokenyard.World) -> None:
        buffer = serving_buffer_of(world, enable_shrink=True)
        x, topk_idx, _ = given(world)
        buffer.low_latency_dispatch(x, topk_idx, LARGEST, EXPERTS)
        status = torch.full((RANKS,), 7, dtype=torch.int32)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0, 0, 0]
        world.barrier()
        if world.rank == 2:
            return
        buffer.low_latency_update_mask_buffer(2, True)
        _, counts, *_ = buffer.low_latency_dispatch(x, topk_idx, LARGEST, EXPERTS)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0, 0, 1]
        ids = torch.cat([inputs(source)[1].flatten() for source in range(2)])
        assert counts.tolist() == [(ids == world.rank * LOCAL + e).sum() for e in range(LOCAL)]
        assert buffer.get_local_buffer_tensor(torch.int8, use_rdma_buffer=True).numel() == 0
        buffer.clean_low_latency_buffer(LARGEST, HIDDEN, EXPERTS)

    run(layer)


def test_a_mask_holds_for_calls_of_every_shape() -> None:
    """Also in later exchanges: here a mask belongs to an exchange, in DeepEP to the buffer."""

    def layer(world: tokenyard.World) -> None:
        buffer = serving_buffer_of(world, enable_shrink=True)
        x, topk_idx, _ = given(world)
        status = torch.empty(RANKS, dtype=torch.int32)
        masked = [0, 0, 1]
        if world.rank != 2:
            buffer.low_latency_update_mask_buffer(2, True)
            buffer.low_latency_query_mask_buffer(status)
            assert status.tolist() == masked
        else:
            for rank in (0, 1):
                buffer.low_latency_update_mask_buffer(rank, True)
            masked = [1, 1, 0]
        sources = [rank for rank in range(RANKS) if not masked[rank]]
        for largest in (LARGEST, LARGEST + 1):
            _, counts, *_ = buffer.low_latency_dispatch(x, topk_idx, largest, EXPERTS)
            ids = torch.cat([inputs(source)[1].flatten() for source in sources])
            assert counts.tolist() == [(ids == world.rank * LOCAL + e).sum() for e in range(LOCAL)]
            buffer.low_latency_query_mask_buffer(status)
            assert status.tolist() == masked
        with pytest.raises(tokenyard.InvalidArgument, match="mask_status"):
            buffer.low_latency_query_mask_buffer(status.long())
        with pytest.raises(tokenyard.InvalidArgument, match="rank_to_mask"):
            buffer.low_latency_update_mask_buffer(RANKS, True)

    run_on("host", layer)


@pytest.mark.parametrize("all_of_them", [False, True])
def test_unmasking_that_is_refused_changes_nothing(all_of_them: bool) -> None:
    """A hook of one shape is not called, while batches of the others are in progress."""

    def layer(world: tokenyard.World) -> None:
        buffer = serving_buffer_of(world, enable_shrink=True)
        x, topk_idx, topk_weights = given(world)
        others = [2] if world.rank != 2 else [0, 1]
        for rank in others:
            buffer.low_latency_update_mask_buffer(rank, True)
        rows, _, handle, *_ = buffer.low_latency_dispatch(
            x, topk_idx, LARGEST, EXPERTS, use_fp8=False
        )
        *_, hook = buffer.low_latency_dispatch(
            x, topk_idx, LARGEST + 1, EXPERTS, return_recv_hook=True
        )

        def unmask() -> None:
            if all_of_them:
                buffer.low_latency_clean_mask_buffer()
            else:
                for rank in others:
                    buffer.low_latency_update_mask_buffer(rank, False)

        status = torch.zeros(RANKS, dtype=torch.int32)
        with pytest.raises(tokenyard.InvalidArgument, match="hook"):
            unmask()
        buffer.low_latency_query_mask_buffer(status)
        assert status.nonzero().flatten().tolist() == others
        home, *_ = buffer.low_latency_combine(rows, topk_idx, topk_weights, handle)
        reached = (topk_idx >= 0) & ~status.bool()[topk_idx.clamp(min=0) // LOCAL]
        expected = x.float() * topk_weights.where(reached, 0).sum(1, keepdim=True)
        assert torch.allclose(home.float(), expected, rtol=0.02, atol=0.02)

        hook()
        world.barrier("no call is under way")
        unmask()
        world.barrier("everybody is unmasked")
        _, counts, *_ = buffer.low_latency_dispatch(x, topk_idx, LARGEST + 1, EXPERTS)
        assert counts.tolist() == expected_counts(world.rank)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0] * RANKS

    run_on("host", layer)


def test_ranks_meet_once_there_was_a_call_and_room_for_another() -> None:
    def layer(world: tokenyard.World) -> None:
        buffer = serving_buffer_of(world, enable_shrink=True)
        x, topk_idx, _ = inputs(0)
        clean = (LARGEST, HIDDEN, EXPERTS)
        buffer.clean_low_latency_buffer(*clean)
        *_, hook = buffer.low_latency_dispatch(x, topk_idx, LARGEST, EXPERTS, return_recv_hook=True)
        with pytest.raises(tokenyard.InvalidArgument, match="hook"):
            buffer.clean_low_latency_buffer(*clean)
        hook()
        buffer.clean_low_latency_buffer(*clean)
        first = buffer.low_latency_dispatch(x, topk_idx, LARGEST + 1, EXPERTS)
        second = buffer.low_latency_dispatch(x, topk_idx, LARGEST + 1, EXPERTS)
        with pytest.raises(tokenyard.InvalidArgument, match="two batches"):
            buffer.clean_low_latency_buffer(*clean)
        del first, second

    tokenyard.launch(layer, ranks=1, arena_bytes=128 << 20)


FAILS_AT = {2: {"dispatch": 1}, 4: {"dispatch": 1, "combine": 3, "clean": 2}}
"""Returns the rank that is gone from its first call of a kind on."""


@pytest.mark.parametrize("ranks", FAILS_AT)
@pytest.mark.parametrize("hooks", [False, True])
def test_ranks_that_fail_are_masked_and_the_others_go_on(ranks: int, hooks: bool) -> None:
    """DeepEP's own shrink test needs six ranks, for 1, 3 and 5 fail in it."""
    fails_at = FAILS_AT[ranks]

    def layer(world: tokenyard.World) -> None:
        buffer = serving_buffer_of(world, enable_shrink=True)
        gone: set[int] = set()
        status = torch.zeros(ranks, dtype=torch.int32)

        def fails(call: str) -> bool:
            if call in fails_at:
                gone.add(fails_at[call])
            return world.rank in gone

        def expect_gone() -> None:
            buffer.low_latency_query_mask_buffer(status)
            assert set(status.nonzero().flatten().tolist()) == gone

        batches = [fleet_inputs(rank, ranks) for rank in range(ranks)]
        x, topk_idx, weights = batches[world.rank]
        how = dict(async_finish=not hooks, return_recv_hook=hooks)
        local = EXPERTS // ranks
        # All ranks are alive when the exchange is made.
        buffer.low_latency_dispatch(x[:0], topk_idx[:0], LARGEST, EXPERTS)
        for _ in range(3):
            if fails("dispatch"):
                return
            rows, counts, handle, event, hook = buffer.low_latency_dispatch(
                x, topk_idx, LARGEST, EXPERTS, use_fp8=False, **how
            )
            hook() if hooks else event.current_stream_wait()
            expect_gone()
            ids = torch.cat([batches[rank][1] for rank in range(ranks) if rank not in gone])
            for expert in range(local):
                assert counts[expert] == (ids == world.rank * local + expert).sum()
            if fails("combine"):
                return
            home, event, hook = buffer.low_latency_combine(rows, topk_idx, weights, handle, **how)
            hook() if hooks else event.current_stream_wait()
            expect_gone()
            reached = (topk_idx >= 0) & ~status.bool()[topk_idx.clamp(min=0) // local]
            expected = x.float() * weights.where(reached, 0).sum(1, keepdim=True)
            assert torch.allclose(home.float(), expected, rtol=0.02, atol=0.02)
            if fails("clean"):
                return
            buffer.clean_low_latency_buffer(LARGEST, HIDDEN, EXPERTS)
            expect_gone()

    tokenyard.launch(layer, ranks=ranks, arena_bytes=128 << 20, timeout=1)


def test_a_batch_is_combined_again_only_by_those_who_dispatched_it() -> None:
    """Places of rows depend on the ranks that take part."""

    def layer(world: tokenyard.World) -> None:
        buffer = serving_buffer_of(world, enable_shrink=True)
        x, topk_idx, topk_weights = given(world)
        rows, _, handle, *_ = buffer.low_latency_dispatch(
            x, topk_idx, LARGEST, EXPERTS, use_fp8=False
        )
        buffer.low_latency_combine(rows, topk_idx, topk_weights, handle)
        buffer.low_latency_update_mask_buffer((world.rank + 1) % RANKS, True)
        with pytest.raises(tokenyard.InvalidArgument, match="handle"):
            buffer.low_latency_combine(rows, topk_idx, topk_weights, handle)

    run_on("host", layer)
