"""The calls that vLLM 0.33.0 makes of deep_ep, in its order, against a layer in NumPy.

Its files: distributed/device_communicators/all2all.py makes the buffers; deepep_ht.py,
deepep_ll.py and deepep_v2.py in model_executor/layers/fused_moe/prepare_finalize use them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from deep_ep_batch import device_of, needs_torch, run_on, torch
from frameworks_reference import Layer, assert_sums, quantized

import tokenyard

if torch is not None:
    import deep_ep

pytestmark = needs_torch

LAYER = Layer()
SERVED = Layer(hidden=2048, tokens=(12, 7, 0))
"""vLLM's low-latency mode takes hidden sizes from 2048."""
LARGEST = 16
MEGABYTE = 1 << 20


def on(world: tokenyard.World, *arrays: Any, bf16: bool = True) -> list[Any]:
    """Returns arrays as tensors of the world's device; float32 rows as bfloat16."""
    tensors = [torch.from_numpy(np.ascontiguousarray(each)).to(device_of(world)) for each in arrays]
    if bf16:
        tensors[0] = tensors[0].bfloat16()
    return tensors


def numbers(tensor: Any) -> Any:
    return tensor.float().cpu().numpy()


class HighThroughput:
    """Prepare and finalize as vLLM's DeepEPHTPrepareAndFinalize calls the buffer."""

    def __init__(self, buffer: Any, layer: Layer, rank: int, micro_batches: bool = False) -> None:
        self.buffer, self.layer, self.rank = buffer, layer, rank
        self.micro_batches = micro_batches
        self.handles: list[Any] = [None, None]
        # vLLM passes no configuration for numbers of ranks that DeepEP was not tuned for.
        tuned = layer.ranks in (2, 4, 8, 16, 24, 32, 64, 128, 144, 160)
        self.dispatch_config = deep_ep.Buffer.get_dispatch_config(layer.ranks) if tuned else None
        self.combine_config = deep_ep.Buffer.get_combine_config(layer.ranks) if tuned else None

    def prepare(self, x: Any, ids: Any, weights: Any, batch: int = 0) -> Callable[[], Any]:
        previous = self.buffer.capture() if self.micro_batches else None
        per_rank, per_rdma_rank, per_expert, in_rank, _ = self.buffer.get_dispatch_layout(
            topk_idx=ids,
            num_experts=self.layer.experts,
            previous_event=previous,
            async_finish=False,
            allocate_on_comm_stream=False,
        )
        rows, ids_there, weights_there, counts, handle, event = self.buffer.dispatch(
            x=x,
            handle=None,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_rdma_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=ids,
            topk_weights=weights,
            expert_alignment=1,
            config=self.dispatch_config,
            previous_event=previous,
            async_finish=not self.micro_batches,
            allocate_on_comm_stream=False,
        )
        self.handles[batch] = handle

        def receive() -> Any:
            if event.event is not None:
                event.current_stream_wait()
            # vLLM's kernels know global ids, and some id of another rank stands for none.
            first = self.rank * self.layer.local
            elsewhere = self.layer.experts - 1 if first == 0 else 0
            wide = torch.where(ids_there == -1, elsewhere, ids_there + first)
            assert wide.dtype == torch.int64
            return rows, wide, weights_there, torch.tensor(counts, dtype=torch.int32)

        return receive

    def experts(self, rows: Any, ids: Any, weights: Any) -> Any:
        """Returns the sum over each row's experts here, in bfloat16."""
        total = np.zeros(rows.shape)
        ids, weights = ids.cpu().numpy(), weights.cpu().numpy()
        first = self.rank * self.layer.local
        for row, choice in np.argwhere((ids >= first) & (ids < first + self.layer.local)):
            one = self.layer.expert(ids[row, choice], rows[row : row + 1].astype(np.float64))[0]
            total[row] += weights[row, choice] * one
        return torch.from_numpy(total).bfloat16()

    def finalize(self, out: Any, results: Any, batch: int = 0) -> Callable[[], None]:
        previous = self.buffer.capture() if self.micro_batches else None
        home, none, event = self.buffer.combine(
            x=results,
            handle=self.handles[batch],
            topk_weights=None,
            config=self.combine_config,
            previous_event=previous,
            async_finish=not self.micro_batches,
            allocate_on_comm_stream=False,
        )
        assert none is None

        def receive() -> None:
            if event.event is not None:
                event.current_stream_wait()
            out.copy_(home, non_blocking=True)

        return receive


def check_high_throughput(buffer: Any, layer: Layer, rank: int, device: str, fp8: bool) -> None:
    """Runs one layer and checks what arrives, and what comes home."""
    x, ids, weights = layer.given(rank)
    calls = HighThroughput(buffer, layer, rank)
    rows, expected_sums = x, layer.result(rank)
    tokens = torch.from_numpy(x).to(device).bfloat16()
    if fp8:  # Block-quantized models are cast before the dispatch.
        codes, scales, rows = quantized(x)
        codes = torch.from_numpy(codes.view(np.uint8)).view(torch.float8_e4m3fn).to(device)
        tokens = (codes, torch.from_numpy(scales).to(device))
        expected_sums = layer.result(rank, rows)
    given = [torch.from_numpy(each).to(device) for each in (ids, weights)]
    got, wide, shares, counts = calls.prepare(tokens, *given)()
    if fp8:
        got_codes, got_scales = got
        assert got_scales.shape == (len(got_codes), layer.hidden // 128)
        values = numbers(got_codes).reshape(-1, layer.hidden // 128, 128)
        got = torch.from_numpy((values * numbers(got_scales)[:, :, None]).reshape(-1, layer.hidden))
    arriving, local, shares_expected = layer.arriving(rank)
    assert counts.tolist() == layer.per_expert(rank)
    assert got.shape == arriving.shape
    as_sent = quantized(arriving)[2] if fp8 else arriving
    np.testing.assert_array_equal(numbers(got), as_sent)
    here = local >= 0
    np.testing.assert_array_equal(wide.cpu().numpy()[here], (local + rank * layer.local)[here])
    np.testing.assert_array_equal(shares.cpu().numpy()[here], shares_expected[here].astype("f4"))
    results = calls.experts(numbers(got), wide, shares).to(device)
    out = torch.empty(x.shape, dtype=torch.bfloat16, device=device)
    calls.finalize(out, results)()
    assert_sums(numbers(out), expected_sums)


@pytest.mark.parametrize("fp8", [False, True])
def test_high_throughput(run: Callable[..., None], fp8: bool) -> None:
    def rank(world: tokenyard.World) -> None:
        deep_ep.Buffer.set_num_sms(min(4, 20))
        buffer = deep_ep.Buffer(world, 32 * MEGABYTE, 0, False, 1, explicitly_destroy=True)
        for _ in range(3):  # Layers share a buffer.
            check_high_throughput(buffer, LAYER, world.rank, device_of(world), fp8)
        buffer.destroy()

    run(rank)


def test_high_throughput_in_two_micro_batches_on_two_threads() -> None:
    """Dual batch overlap: two threads take turns, and each combines its own handle."""

    def rank(world: tokenyard.World) -> None:
        buffer = deep_ep.Buffer(world, 32 * MEGABYTE, explicitly_destroy=True)
        layers = [Layer(seed=batch) for batch in range(2)]
        calls = HighThroughput(buffer, layers[0], world.rank, micro_batches=True)
        turns = [threading.Semaphore(1), threading.Semaphore(0)]
        wrong: list[BaseException] = []

        def micro_batch(batch: int) -> None:
            def yield_turn() -> None:
                turns[1 - batch].release()
                assert turns[batch].acquire(timeout=60)

            assert turns[batch].acquire(timeout=60)
            layer = layers[batch]
            x, ids, weights = on(world, *layer.given(world.rank))
            receive = calls.prepare(x, ids, weights, batch)
            yield_turn()
            rows, wide, shares, _ = receive()
            results = calls.experts(numbers(rows), wide, shares)
            yield_turn()
            out = torch.empty_like(x)
            finish = calls.finalize(out, results, batch)
            yield_turn()
            finish()
            assert_sums(numbers(out), layer.result(world.rank))
            turns[1 - batch].release()

        def guarded(batch: int) -> None:
            try:
                micro_batch(batch)
            except BaseException as error:
                wrong.append(error)
                turns[1 - batch].release()

        threads = [threading.Thread(target=guarded, args=(batch,)) for batch in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        if wrong:
            raise wrong[0]

    tokenyard.launch(rank, ranks=LAYER.ranks, arena_bytes=128 * MEGABYTE)


def serving_buffer(world: tokenyard.World, layer: Layer, **options: Any) -> Any:
    """Returns a buffer as vLLM's low-latency manager makes it."""
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank=LARGEST,
        hidden=layer.hidden,
        num_ranks=layer.ranks,
        num_experts=layer.experts,
    )
    return deep_ep.Buffer(
        group=world,
        num_nvl_bytes=MEGABYTE,
        num_rdma_bytes=size,
        low_latency_mode=True,
        num_qps_per_rank=layer.local,
        allow_nvlink_for_low_latency_mode=True,
        allow_mnnvl=False,
        explicitly_destroy=True,
        **options,
    )


def served(rows: Any, counts: Any, layer: Layer, rank: int) -> Any:
    """Returns the experts' results at the places of their rows; what no row fills is NaN."""
    y = torch.full(rows.shape, torch.nan)
    for expert, count in enumerate(counts.tolist()):
        of_expert = numbers(rows[expert, :count])
        y[expert, :count] = torch.from_numpy(
            layer.expert(rank * layer.local + expert, of_expert.astype(np.float64))
        )
    return y.bfloat16().to(rows.device)


@pytest.mark.parametrize("rows_as", ["bf16", "fp8", "ue8m0"])
@pytest.mark.parametrize("hooks", [False, True])
def test_low_latency(run: Callable[..., None], rows_as: str, hooks: bool) -> None:
    layer = SERVED

    def rank(world: tokenyard.World) -> None:
        buffer = serving_buffer(world, layer)
        x, ids, weights = on(world, *layer.given(world.rank))
        # Experts may have other numbers here than in the router.
        physical = torch.arange(layer.experts, device=ids.device).roll(1)
        fp8, packed = rows_as != "bf16", rows_as == "ue8m0"
        rows, counts, handle, _, hook = buffer.low_latency_dispatch(
            x,
            physical[ids],
            LARGEST,
            layer.experts,
            use_fp8=fp8,
            round_scale=packed,
            use_ue8m0=packed,
            async_finish=False,
            return_recv_hook=True,
        )
        hook()
        if fp8:
            codes, scales = rows
            assert codes.is_contiguous()
            assert codes.shape == (layer.local, layer.ranks * LARGEST, layer.hidden)
            if packed:
                assert scales.dtype == torch.int32
                exponents = scales.contiguous().view(torch.uint8).int()
                scales = torch.exp2((exponents - 127).float())
            flat = codes.float().view(layer.local, -1, 128)
            rows = (flat * scales.contiguous().view(layer.local, -1, 1)).view(codes.shape)
        assert counts.dtype == torch.int32
        values = rows.nan_to_num()
        # Expert `physical[e]` computes what the router's expert e stands for.
        y = torch.full(values.shape, torch.nan)
        for expert, count in enumerate(counts.tolist()):
            number = (world.rank * layer.local + expert + 1) % layer.experts
            got = numbers(values[expert, :count]).astype(np.float64)
            y[expert, :count] = torch.from_numpy(layer.expert(number, got))
        out = torch.empty_like(x)
        _, _, hook = buffer.low_latency_combine(
            y.bfloat16().to(x.device),
            physical[ids],
            weights,
            handle,
            async_finish=False,
            zero_copy=False,
            return_recv_hook=hooks,
            out=out,
        )
        assert (hook is not None) == hooks
        if hooks:
            hook()
        # Powers of two leave no choice of rounding; other scales do, by one step of E4M3.
        seen = quantized(layer.given(world.rank)[0], True)[2] if packed else None
        within = 3 * 2**-8 + (2**-4 if fp8 and not packed else 0)
        assert_sums(numbers(out), layer.result(world.rank, seen), within)
        buffer.destroy()

    run(rank)


def test_low_latency_in_two_micro_batches(run: Callable[..., None]) -> None:
    """One batch's hook runs while the other is sent; two batches are under way at a time."""
    layers = [Layer(hidden=2048, tokens=(5, 9, 1), seed=batch) for batch in range(2)]

    def rank(world: tokenyard.World) -> None:
        buffer = serving_buffer(world, layers[0])
        given = [on(world, *layer.given(world.rank)) for layer in layers]
        outs = [torch.empty_like(x) for x, _, _ in given]

        def send(batch: int) -> Any:
            x, ids, _ = given[batch]
            shape = (LARGEST, layers[batch].experts)
            return buffer.low_latency_dispatch(
                x, ids, *shape, use_fp8=False, async_finish=False, return_recv_hook=True
            )

        def compute(batch: int, sent: Any) -> Callable[[], None]:
            rows, counts, handle, _, _ = sent
            _, ids, weights = given[batch]
            y = served(rows, counts, layers[batch], world.rank)
            return buffer.low_latency_combine(
                y,
                ids,
                weights,
                handle,
                async_finish=False,
                zero_copy=False,
                return_recv_hook=True,
                out=outs[batch],
            )[2]

        for _ in range(3):
            first = send(0)
            first[4]()
            second = send(1)
            finish_first = compute(0, first)
            second[4]()
            finish_first()
            finish_second = compute(1, second)
            finish_second()
            for batch, layer in enumerate(layers):
                assert_sums(numbers(outs[batch]), layer.result(world.rank))
        buffer.destroy()

    run(rank)


def test_faults_are_asked_for_and_cleaned(run: Callable[..., None]) -> None:
    """enable_fault_tolerance: the mask is queried every step, and buffers are cleaned after one."""

    def rank(world: tokenyard.World) -> None:
        buffer = serving_buffer(world, SERVED, enable_shrink=True)
        mask = torch.zeros(world.size, dtype=torch.int32)
        buffer.low_latency_query_mask_buffer(mask)
        assert mask.tolist() == [0] * world.size
        buffer.get_local_buffer_tensor(dtype=torch.int8, use_rdma_buffer=True).zero_()
        buffer.low_latency_clean_mask_buffer()
        buffer.destroy()

    run(rank)


@pytest.mark.parametrize("rows_as", ["bf16", "fp8", "mxfp8"])
@pytest.mark.parametrize("decode", [False, True])
def test_elastic_buffer(run: Callable[..., None], rows_as: str, decode: bool) -> None:
    """Prefill receives rows by expert; decode keeps the order of sources and never waits."""

    def rank(world: tokenyard.World) -> None:
        layer, number = LAYER, world.rank
        buffer = deep_ep.ElasticBuffer(
            group=world,
            num_max_tokens_per_rank=64,
            hidden=layer.hidden,
            num_topk=layer.topk,
            use_fp8_dispatch=rows_as != "bf16",
            allow_hybrid_mode=True,
            prefer_overlap_with_compute=False,
            allow_multiple_reduction=False,
            explicitly_destroy=True,
        )
        sms = buffer.get_theoretical_num_sms(num_experts=layer.experts, num_topk=layer.topk)
        assert sms > 0
        x, ids, weights = layer.given(number)
        tokens, topk_idx, topk_weights = on(world, x, ids, weights)
        codes, scales, values = quantized(x, powers_of_two=rows_as == "mxfp8")
        if rows_as != "bf16":
            steps = torch.from_numpy(scales)
            if rows_as == "mxfp8":  # A byte per 32 channels; four are packed in a word.
                exponents = (np.log2(scales) + 127).astype(np.uint8).repeat(4, 1)
                steps = torch.from_numpy(np.ascontiguousarray(exponents).view(np.int32))
            rows = torch.from_numpy(codes.view(np.uint8)).view(torch.float8_e4m3fn)
            tokens = (rows.to(topk_idx.device), steps.to(topk_idx.device))
        largest = 1 << (max(layer.tokens) - 1).bit_length() if decode else None
        got, got_ids, got_weights, handle, event = buffer.dispatch(
            x=tokens,
            topk_idx=topk_idx,
            topk_weights=topk_weights,
            num_experts=layer.experts,
            num_max_tokens_per_rank=largest,
            do_expand=not decode,
            do_cpu_sync=not decode,
            async_with_compute_stream=False,
        )
        assert event.event is None
        ends = handle.psum_num_recv_tokens_per_scaleup_rank
        arriving = len(layer.arriving(number)[0])
        assert ends[-1] == arriving
        if isinstance(got, tuple):
            got, got_scales = got
            steps = got_scales.contiguous()
            if rows_as == "mxfp8":
                exponents = steps.view(torch.uint8)[:, ::4].int().cpu()
                steps = torch.exp2((exponents - 127).float())
            blocks = numbers(got).reshape(len(got), layer.hidden // 128, 128)
            got = (blocks * numbers(steps)[:, :, None]).reshape(len(got), layer.hidden)
        else:
            got = numbers(got)
        if decode:
            assert len(got) == layer.ranks * (largest or 0)
            assert handle.num_recv_tokens_per_expert_list == []
            # vLLM makes received ids global in place.
            first = number * layer.local
            row = torch.arange(len(got), device=got_ids.device)[:, None]
            real = (got_ids >= 0) & (row < ends[-1])
            got_ids.copy_(torch.where(real, got_ids + first, -1))
            results = np.zeros(got.shape)
            where = got_ids.cpu().numpy()
            for at, choice in np.argwhere(where >= 0):
                one = layer.expert(where[at, choice], got[at : at + 1].astype(np.float64))[0]
                results[at] += got_weights[at, choice].item() * one
        else:
            assert got_ids is None
            counts = handle.num_recv_tokens_per_expert_list
            assert counts == layer.per_expert(number)
            assert len(got) == sum(counts) == len(got_weights)
            numbered = number * layer.local + np.arange(layer.local).repeat(counts)
            results = np.zeros(got.shape)
            for at, expert in enumerate(numbered):
                results[at] = layer.expert(expert, got[at : at + 1].astype(np.float64))[0]
            results *= got_weights.cpu().numpy()[:, None]
        y = torch.from_numpy(results).bfloat16().to(topk_idx.device)
        overlaps = not decode
        home, _, event = buffer.combine(
            x=y,
            handle=handle,
            topk_weights=None,
            async_with_compute_stream=overlaps,
            allocate_on_comm_stream=overlaps,
        )
        if event.event is not None:
            event.current_stream_wait()
        expected = layer.result(number, None if rows_as == "bf16" else values)
        assert_sums(numbers(home), expected)
        buffer.destroy()

    run(rank)


def test_what_vllm_may_ask_for_and_is_not_there() -> None:
    """Each is refused where it is asked for, in a sentence, before a row moves."""

    def rank(world: tokenyard.World) -> None:
        buffer = serving_buffer(world, SERVED)
        x, ids, _ = on(world, *SERVED.given(0))
        nvfp4 = dict(use_nvfp4=True, x_global_scale=torch.ones(1))
        with pytest.raises(
            tokenyard.Unsupported, match=r"x_global_scale.*VLLM_DEEPEPLL_NVFP4_DISPATCH"
        ):
            buffer.low_latency_dispatch(x, ids, LARGEST, SERVED.experts, use_fp8=False, **nvfp4)
        buffer.destroy()

    tokenyard.launch(rank, ranks=1, arena_bytes=128 * MEGABYTE)


def test_ranks_that_memory_does_not_join_are_refused_when_a_buffer_is_made() -> None:
    """On two hosts: the first call may come minutes later, and nothing slower takes its place."""

    def rank(world: tokenyard.World) -> str:
        with pytest.raises(tokenyard.Unsupported) as caught:
            deep_ep.HybridEPBuffer(
                world, hidden_dim=256, max_num_of_tokens_per_rank=8, num_local_experts=2
            )
        return str(caught.value)

    told = tokenyard.launch(rank, ranks=4, hosts=2)
    assert len(set(told)) == 1
    assert "HybridEPBuffer over these ranks" in told[0]
    assert "rank 0 cannot reach rank 2" in told[0]
    assert "on one host" in told[0]


def test_the_environment_of_vllm_changes_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of DeepEP and NVSHMEM are neither read nor set."""
    for variable in ("EP_DISABLE_GIN", "EP_REUSE_NCCL_COMM", "NVSHMEM_QP_DEPTH"):
        monkeypatch.setenv(variable, "0")
    before = dict(os.environ)
    run_on(
        "host",
        lambda world: deep_ep.Buffer(world, MEGABYTE, explicitly_destroy=True).destroy(),
    )
    assert dict(os.environ) == before
