"""The deep_ep package's low-latency calls, as vLLM and SGLang make them, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from deep_ep_batch import (
    EXPERTS,
    HIDDEN,
    LARGEST,
    LOCAL,
    NVL_BYTES,
    RANKS,
    equal,
    expected_sum,
    given,
    inputs,
    needs_torch,
    run_on,
    serving_buffer_of,
    torch,
)

import tokenyard

if torch is not None:
    import deep_ep
    from deep_ep.utils.math import per_token_cast_back

pytestmark = needs_torch


def fleet_inputs(rank: int, ranks: int) -> tuple[Any, Any, Any]:
    """Of any rank of any number: each expert is picked by each rank."""
    generator = torch.Generator("cpu").manual_seed(10 * ranks + rank)
    tokens = 24 - 4 * rank
    x = torch.randint(-8, 9, (tokens, HIDDEN), generator=generator).to(torch.bfloat16)
    picks = torch.rand(tokens, EXPERTS, generator=generator).argsort(1)[:, :4].contiguous()
    picks[torch.rand(tokens, 4, generator=generator) < 0.1] = -1
    return x, picks, torch.rand(tokens, 4, generator=generator)


def low_latency_rows(world: tokenyard.World, expert: int) -> tuple[Any, Any]:
    """What an expert of this rank receives, and where each source's rows begin and how many."""
    number = world.rank * LOCAL + expert
    parts = [inputs(source)[0][(inputs(source)[1] == number).any(1)] for source in range(RANKS)]
    counts = torch.tensor([len(part) for part in parts])
    return torch.cat(parts), torch.stack([counts.cumsum(0) - counts, counts], 1)


@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.parametrize("fp8", [False, True])
def test_low_latency_sequences(run: Callable[..., None], hooks: bool, fp8: bool) -> None:
    def layer(world: tokenyard.World) -> None:
        buffer = serving_buffer_of(world)
        x, topk_idx, topk_weights = given(world)
        total = torch.zeros(LOCAL, dtype=torch.int32)
        waited = torch.zeros(RANKS, dtype=torch.int64)
        how = dict(async_finish=not hooks, return_recv_hook=hooks)
        rows, counts, handle, event, hook = buffer.low_latency_dispatch(
            x,
            topk_idx,
            LARGEST,
            EXPERTS,
            use_fp8=fp8,
            cumulative_local_expert_recv_stats=total,
            dispatch_wait_recv_cost_stats=waited,
            **how,
        )
        hook() if hooks else event.current_stream_wait()
        _, ranges, *sizes = handle
        assert sizes == [LARGEST, HIDDEN, EXPERTS]
        assert equal(total, counts)
        values = rows
        if fp8:
            values = per_token_cast_back(
                rows[0].view(-1, HIDDEN), rows[1].reshape(-1, HIDDEN // 128)
            )
            values = values.view(rows[0].shape)
        for expert in range(LOCAL):
            wanted, places = low_latency_rows(world, expert)
            assert counts[expert] == len(wanted)
            seen = values[expert, : len(wanted)]
            assert torch.allclose(seen.float().cpu(), wanted.float(), rtol=0.07)
            assert equal(ranges[expert] & 0xFFFFFFFF, places[:, 1])
            some = places[:, 1] > 0
            assert equal((ranges[expert] >> 32)[some], places[some, 0])
        results = torch.nan_to_num(values)

        expected = x.float() * topk_weights.where(topk_idx >= 0, 0).sum(1, keepdim=True)
        out = torch.empty_like(x)
        home, event, hook = buffer.low_latency_combine(
            results, topk_idx, topk_weights, handle, out=out, **how
        )
        hook() if hooks else event.current_stream_wait()
        assert home is out
        assert torch.allclose(home.float(), expected, rtol=0.1, atol=0.1)
        # DeepEP combines a batch again if asked to, also from the buffer's own memory.
        buffer.get_next_low_latency_combine_buffer(handle)[:] = results
        again, event, hook = buffer.low_latency_combine(
            results, topk_idx, topk_weights, handle, zero_copy=True, **how
        )
        hook() if hooks else event.current_stream_wait()
        assert equal(again, home)

    run(layer)


def test_both_kinds_of_calls_from_one_buffer(run: Callable[..., None]) -> None:
    def layer(world: tokenyard.World) -> None:
        size = deep_ep.Buffer.get_low_latency_rdma_size_hint(LARGEST, HIDDEN, RANKS, EXPERTS)
        buffer = deep_ep.Buffer(world, NVL_BYTES, size, low_latency_mode=True)
        x, topk_idx, topk_weights = given(world)
        for _ in range(2):
            layout = buffer.get_dispatch_layout(topk_idx, EXPERTS)
            rows, *_, handle, _ = buffer.dispatch(
                x, topk_idx=topk_idx, topk_weights=topk_weights, num_tokens_per_expert=layout[2]
            )
            assert equal(buffer.combine(rows, handle)[0], expected_sum(x, topk_idx))
            buffer.clean_low_latency_buffer(LARGEST, HIDDEN, EXPERTS)
            served, _, handle, _, _ = buffer.low_latency_dispatch(
                x, topk_idx, LARGEST, EXPERTS, use_fp8=False
            )
            home, _, _ = buffer.low_latency_combine(served, topk_idx, topk_weights, handle)
            expected = x.float() * topk_weights.where(topk_idx >= 0, 0).sum(1, keepdim=True)
            assert torch.allclose(home.float(), expected, rtol=0.02, atol=0.02)

    run(layer)


def test_options_of_forks_are_refused_where_they_ask_for_something() -> None:
    """SGLang hands all options of an overlap to a combine, also where the overlap itself is off."""

    def layer(world: tokenyard.World) -> None:
        buffer = serving_buffer_of(world)
        x, topk_idx, topk_weights = inputs(0)
        call = (x, topk_idx, LARGEST, EXPERTS)
        for asked in (dict(use_nvfp4=True), dict(x_global_scale=torch.zeros(4))):
            with pytest.raises(tokenyard.Unsupported, match=next(iter(asked))):
                buffer.low_latency_dispatch(*call, **asked)
        off = dict(use_nvfp4=False, x_global_scale=None)
        rows, counts, handle, *_ = buffer.low_latency_dispatch(*call, use_fp8=False, **off)
        home = (rows, topk_idx, topk_weights, handle)
        hopper = dict(packed_recv_count=counts, comp_signal=None, block_m=64, num_sms=3)
        blackwell = dict(src_signals=None, src_signal_expect_value=1)
        for beside in (hopper, blackwell):
            buffer.low_latency_combine(*home, overlap=False, threshold=0, **beside)
            with pytest.raises(tokenyard.Unsupported, match="overlap"):
                buffer.low_latency_combine(*home, overlap=True, **beside)
        with pytest.raises(tokenyard.Unsupported, match="comp_signal"):
            buffer.low_latency_combine(*home, comp_signal=counts)

    tokenyard.launch(layer, ranks=1, arena_bytes=128 << 20)


def test_rows_that_have_no_scales_care_for_no_flag_of_them(run: Callable[..., None]) -> None:
    def layer(world: tokenyard.World) -> None:
        buffer = serving_buffer_of(world)
        x, topk_idx, _ = given(world)
        rows, *_ = buffer.low_latency_dispatch(
            x, topk_idx, LARGEST, EXPERTS, use_fp8=False, use_ue8m0=True
        )
        assert rows.dtype == torch.bfloat16

    run(layer)


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
    """Also for those that come later: here a mask belongs to an exchange, there to the buffer."""

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


FAILS_AT = {2: {"dispatch": 1}, 4: {"dispatch": 1, "combine": 3, "clean": 2}}
"""The rank that is gone from its first call of a kind on."""


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
        # The exchange is made by ranks that are all there.
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
