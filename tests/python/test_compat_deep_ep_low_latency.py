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
    serving_buffer_of,
    torch,
)

import tokenyard

if torch is not None:
    import deep_ep
    from deep_ep.streams import Turn
    from deep_ep.utils.math import per_token_cast_back

pytestmark = needs_torch


def low_latency_rows(world: tokenyard.World, expert: int) -> tuple[Any, Any]:
    """Returns the rows of a local expert, and begin and number of each source's rows."""
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
        # DeepEP allows a second combine of a batch, also from the buffer's own memory.
        buffer.get_next_low_latency_combine_buffer(handle)[:] = results
        again, event, hook = buffer.low_latency_combine(
            results, topk_idx, topk_weights, handle, zero_copy=True, **how
        )
        hook() if hooks else event.current_stream_wait()
        assert equal(again, home)

    run(layer)


def bits(rows: Any) -> Any:
    """Places behind an expert's rows may be NaN, and are unchanged, too."""
    return rows.contiguous().view(torch.uint8)


def test_a_batch_is_combined_again_as_it_was_received(run: Callable[..., None]) -> None:
    """The second dispatch of its ids reuses the memory of its rows."""

    def layer(world: tokenyard.World) -> None:
        buffer = serving_buffer_of(world)
        x, topk_idx, topk_weights = given(world)
        rows, _, handle, *_ = buffer.low_latency_dispatch(
            x, topk_idx, LARGEST, EXPERTS, use_fp8=False
        )
        received = rows.clone()
        home, *_ = buffer.low_latency_combine(rows, topk_idx, topk_weights, handle)
        expected = x.float() * topk_weights.where(topk_idx >= 0, 0).sum(1, keepdim=True)
        assert torch.allclose(home.float(), expected, rtol=0.02, atol=0.02)
        for zero_copy in (False, False, True, False):
            if zero_copy:
                buffer.get_next_low_latency_combine_buffer(handle)[:] = rows
            again, *_ = buffer.low_latency_combine(
                rows, topk_idx, topk_weights, handle, zero_copy=zero_copy
            )
            assert equal(again, home)
            assert equal(bits(rows), bits(received))

    run(layer)


def test_received_scales_outlast_a_second_combine(run: Callable[..., None]) -> None:
    def layer(world: tokenyard.World) -> None:
        buffer = serving_buffer_of(world)
        x, topk_idx, topk_weights = given(world)
        received, _, handle, *_ = buffer.low_latency_dispatch(x, topk_idx, LARGEST, EXPERTS)
        before = [part.clone() for part in received]
        results = torch.zeros(received[0].shape, dtype=torch.bfloat16)
        for _ in range(2):
            buffer.low_latency_combine(results, topk_idx, topk_weights, handle)
        for part, kept in zip(received, before, strict=True):
            assert equal(bits(part), bits(kept))

    run(layer)


def test_a_batch_is_combined_again_wherever_others_lie(run: Callable[..., None]) -> None:
    """Its second dispatch uses other memory, its third that of the received rows."""

    def layer(world: tokenyard.World) -> None:
        buffer = serving_buffer_of(world)
        x, topk_idx, topk_weights = given(world)

        def dispatch(x: Any) -> tuple[Any, Any]:
            rows, _, handle, *_ = buffer.low_latency_dispatch(
                x, topk_idx, LARGEST, EXPERTS, use_fp8=False
            )
            return rows, handle

        def combine(batch: tuple[Any, Any]) -> Any:
            rows, handle = batch
            return buffer.low_latency_combine(rows, topk_idx, topk_weights, handle)[0]

        first, second = dispatch(x), dispatch(2 * x)
        home, double = combine(first), combine(second)
        assert equal(combine(second), double)
        third = dispatch(4 * x)
        assert equal(combine(second), double)
        combine(third)

        # The fourth batch now uses the first one's memory, and must not be affected.
        fourth = dispatch(x)
        buffer.get_next_low_latency_combine_buffer(first[1])
        assert equal(combine(fourth), home)

    run(layer)


def test_a_combine_from_a_buffer_that_was_not_asked_for_dispatches_nothing() -> None:
    def layer(world: tokenyard.World) -> None:
        buffer = serving_buffer_of(world)
        x, topk_idx, topk_weights = inputs(0)
        rows, _, handle, *_ = buffer.low_latency_dispatch(
            x, topk_idx, LARGEST, EXPERTS, use_fp8=False
        )
        buffer.low_latency_combine(rows, topk_idx, topk_weights, handle)
        with pytest.raises(tokenyard.InvalidArgument, match="zero_copy"):
            buffer.low_latency_combine(rows, topk_idx, topk_weights, handle, zero_copy=True)
        assert handle.combined

    tokenyard.launch(layer, ranks=1, arena_bytes=128 << 20)


def test_ids_that_a_second_combine_reads_outlast_it() -> None:
    """They are used on the buffer's stream, so torch must not reuse their memory earlier."""

    def layer(world: tokenyard.World) -> None:
        used: list[Any] = []
        buffer = serving_buffer_of(world)
        x, topk_idx, topk_weights = inputs(0)
        rows, _, handle, *_ = buffer.low_latency_dispatch(
            x, topk_idx, LARGEST, EXPERTS, use_fp8=False
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Turn, "uses", lambda _, *tensors: used.extend(tensors))
            for reads_ids in (False, True):
                used.clear()
                buffer.low_latency_combine(
                    rows, topk_idx.clone(), topk_weights, handle, async_finish=True
                )
                assert any(tensor is topk_idx for tensor in used) == reads_ids

    tokenyard.launch(layer, ranks=1, arena_bytes=128 << 20)


def test_what_a_hook_brings_is_there_in_the_order_of_its_call(run: Callable[..., None]) -> None:
    def layer(world: tokenyard.World) -> None:
        buffer = serving_buffer_of(world)
        x, topk_idx, topk_weights = given(world)
        expected = x.float() * topk_weights.where(topk_idx >= 0, 0).sum(1, keepdim=True)
        other = None if world.device_index is None else torch.cuda.Stream(world.device_index)
        for _ in range(2):
            rows, _, handle, _, hook = buffer.low_latency_dispatch(
                x, topk_idx, LARGEST, EXPERTS, use_fp8=False, return_recv_hook=True
            )
            with torch.cuda.stream(other):
                if other is not None:
                    torch.cuda._sleep(100_000_000)  # Enqueued work takes long here.
                hook()
            results = rows.clone()
            home, _, hook = buffer.low_latency_combine(
                results, topk_idx, topk_weights, handle, return_recv_hook=True
            )
            with torch.cuda.stream(other):
                hook()
            assert torch.allclose(home.float(), expected, rtol=0.02, atol=0.02)

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
    """SGLang passes all options of an overlap to a combine, even if the overlap is off."""

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


def test_low_latency_calls_reach_other_hosts() -> None:
    def layer(world: tokenyard.World) -> None:
        buffer = serving_buffer_of(world)
        x, topk_idx, topk_weights = inputs(world.rank)
        expected = x.float() * topk_weights.where(topk_idx >= 0, 0).sum(1, keepdim=True)
        for hooks in (False, True):
            rows, _, handle, _, hook = buffer.low_latency_dispatch(
                x, topk_idx, LARGEST, EXPERTS, use_fp8=False, return_recv_hook=hooks
            )
            if hooks:
                hook()
            home, _, hook = buffer.low_latency_combine(
                rows, topk_idx, topk_weights, handle, return_recv_hook=hooks
            )
            if hooks:
                hook()
            assert torch.allclose(home.float(), expected, rtol=0.02, atol=0.02)

    tokenyard.launch(layer, ranks=RANKS, hosts=RANKS, arena_bytes=128 << 20)


def test_loads_and_stores_may_be_disallowed() -> None:
    def layer(world: tokenyard.World) -> None:
        buffer = serving_buffer_of(world, allow_nvlink_for_low_latency_mode=False)
        x, topk_idx, _ = inputs(world.rank)
        buffer.low_latency_dispatch(x, topk_idx, LARGEST, EXPERTS, use_fp8=False)
        (exchange,) = buffer._serving._exchanges.values()
        assert exchange.paths == ["put" if rank != world.rank else "self" for rank in range(RANKS)]
        with pytest.raises(tokenyard.InvalidArgument, match="low_latency_mode"):
            deep_ep.Buffer(world, NVL_BYTES, allow_nvlink_for_low_latency_mode=False)

    tokenyard.launch(layer, ranks=RANKS, hosts=RANKS, arena_bytes=128 << 20)
