"""The calls that SGLang 0.5.23 makes of deep_ep, in its order, against a layer in NumPy.

Its files, in srt/layers/moe/token_dispatcher: deepep.py has the dispatchers "normal" and "low
latency", deepep_v2.py that of ElasticBuffer, mooncake.py that of elastic expert parallelism.
srt/batch_overlap has the order of two-batch overlap.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deep_ep_batch import device_of, needs_torch, torch
from frameworks_reference import Layer, assert_sums, quantized

import tokenyard

if torch is not None:
    import deep_ep

    sys.path.insert(0, str(Path(__file__).parents[2] / "compat" / "mooncake"))
    from mooncake.mooncake_ep_buffer import Buffer as MooncakeBuffer

pytestmark = needs_torch

LAYER = Layer()
LARGEST = 32
"""SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK, of which SGLang takes up to 1024."""
ALIGNMENT = 128
FP8_WITHIN = 2**-4 + 3 * 2**-8
"""The rounding of E4M3 and of BF16."""


def numbers(tensor: Any) -> Any:
    return tensor.float().cpu().numpy()


def given(world: tokenyard.World, layer: Layer) -> list[Any]:
    x, ids, weights = [torch.from_numpy(each) for each in layer.given(world.rank)]
    return [each.to(device_of(world)) for each in (x.bfloat16(), ids, weights)]


def cast(x: Any, columns: bool = False, ue8m0: bool = False) -> tuple[Any, Any]:
    """Returns FP8 rows and scales in the layouts of SGLang's kernel."""
    codes, scales, _ = quantized(numbers(x), powers_of_two=ue8m0)
    rows = torch.from_numpy(codes.view(np.uint8)).view(torch.float8_e4m3fn).to(x.device)
    steps = torch.from_numpy(scales)
    if ue8m0:
        exponents = (np.log2(scales) + 127).astype(np.uint8)
        packed = np.zeros((len(scales), -(-scales.shape[1] // 4) * 4), np.uint8)
        packed[:, : scales.shape[1]] = exponents
        steps = torch.from_numpy(packed.view(np.int32))
    if columns:
        steps = steps.T.contiguous().T
    return rows, steps.to(x.device)


def values_of(rows: Any, steps: Any) -> Any:
    """Returns what FP8 rows stand for."""
    blocks = rows.size(-1) // 128
    flat = np.ascontiguousarray(steps.cpu().numpy())
    if flat.dtype == np.int32:
        exponents = flat.view(np.uint8)[..., :blocks].astype(np.float32)
        flat = np.exp2(exponents - 127)
    values = numbers(rows).reshape(*rows.shape[:-1], blocks, 128) * flat[..., None]
    return values.reshape(rows.shape)


def by_ids(layer: Layer, rank: int, rows: Any, ids: Any, weights: Any) -> Any:
    """Returns each row's weighted sum over the local experts that it names."""
    total = np.zeros(rows.shape)
    ids, weights = ids.cpu().numpy(), weights.cpu().numpy()
    for row, choice in np.argwhere(ids >= 0):
        number = rank * layer.local + ids[row, choice]
        one = layer.expert(number, rows[row : row + 1].astype(np.float64))
        total[row] += weights[row, choice] * one[0]
    return torch.from_numpy(total).bfloat16()


class Dispatcher:
    """SGLang's dispatcher of one batch of one layer; batches share the buffer of their rank."""

    def __init__(self, shared: Shared, layer: Layer, *, asynchronous: bool, hooks: bool) -> None:
        self.shared, self.layer = shared, layer
        self.asynchronous, self.hooks = asynchronous, hooks
        self.rank = shared.buffer.rank

    def normal_dispatch_a(self, x: Any, ids: Any, weights: Any, fp8: bool) -> None:
        if fp8:
            x = cast(x, columns=True)
        before = deep_ep.Buffer.capture() if self.asynchronous else None
        self.state = (x, ids, weights, before)

    def normal_dispatch_b(self) -> Any:
        x, ids, weights, before = self.state
        buffer = self.shared.as_normal()
        per_rank, per_rdma, per_expert, in_rank, before = buffer.get_dispatch_layout(
            ids,
            self.layer.experts,
            previous_event=before,
            async_finish=self.asynchronous,
            allocate_on_comm_stream=before is not None,
        )
        rows, ids, weights, counts, self.handle, event = buffer.dispatch(
            x,
            topk_idx=ids,
            topk_weights=weights,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_rdma,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            previous_event=before,
            async_finish=self.asynchronous,
            allocate_on_comm_stream=before is not None and self.asynchronous,
            expert_alignment=ALIGNMENT,
            config=None,
        )
        if self.asynchronous:
            event.current_stream_wait()
        expected = [-(-n // ALIGNMENT) * ALIGNMENT for n in self.layer.per_expert(self.rank)]
        assert counts == expected
        got = values_of(*rows) if isinstance(rows, tuple) else numbers(rows)
        return by_ids(self.layer, self.rank, got, ids, weights).to(ids.device)

    def normal_combine_a(self, results: Any) -> None:
        self.state = (results, deep_ep.Buffer.capture() if self.asynchronous else None)

    def normal_combine_b(self) -> Any:
        results, before = self.state
        home, _, event = self.shared.as_normal().combine(
            results,
            self.handle,
            async_finish=self.asynchronous,
            previous_event=before,
            allocate_on_comm_stream=before is not None,
            config=None,
        )
        if self.asynchronous:
            event.current_stream_wait()
        self.handle = None
        return home

    def low_latency_dispatch_a(self, x: Any, ids: Any, weights: Any, fp8: bool) -> None:
        buffer = self.shared.as_low_latency()
        assert buffer.group_size == self.layer.ranks
        scale_options = dict(round_scale=False, use_ue8m0=False) if fp8 else {}
        rows, counts, self.handle, event, hook = buffer.low_latency_dispatch(
            x,
            ids,
            LARGEST,
            self.layer.experts,
            use_fp8=fp8,
            async_finish=not self.hooks,
            return_recv_hook=self.hooks,
            **scale_options,
        )
        self.state = (rows, ids, weights, counts, event, hook)

    def low_latency_dispatch_b(self) -> Any:
        rows, self.ids, self.weights, counts, event, hook = self.state
        hook() if self.hooks else event.current_stream_wait()
        got = values_of(*rows) if isinstance(rows, tuple) else numbers(rows)
        y = torch.full(got.shape, torch.nan, device="cpu")
        for expert, count in enumerate(counts.tolist()):
            number = self.rank * self.layer.local + expert
            part = self.layer.expert(number, got[expert, :count].astype(np.float64))
            y[expert, :count] = torch.from_numpy(part)
        assert counts.tolist() == self.layer.per_expert(self.rank)
        return y.bfloat16().to(self.ids.device)

    def low_latency_combine_a(self, results: Any, **overlap: Any) -> None:
        self.state = self.shared.as_low_latency().low_latency_combine(
            x=results,
            topk_idx=self.ids,
            topk_weights=self.weights,
            handle=self.handle,
            async_finish=not self.hooks,
            return_recv_hook=self.hooks,
            **overlap,
        )

    def low_latency_combine_b(self) -> Any:
        home, event, hook = self.state
        hook() if self.hooks else event.current_stream_wait()
        self.handle = None
        return home


class Shared:
    """The buffer that all dispatchers of a process share, in the mode "auto"."""

    def __init__(self, world: tokenyard.World, layer: Layer, **fabric: Any) -> None:
        ranks, hidden_bytes = layer.ranks, 2 * layer.hidden
        nvl, rdma = 0, 0
        for config in (
            deep_ep.Buffer.get_dispatch_config(ranks),
            deep_ep.Buffer.get_combine_config(ranks),
        ):
            nvl = max(config.get_nvl_buffer_size_hint(hidden_bytes, ranks), nvl)
            rdma = max(config.get_rdma_buffer_size_hint(hidden_bytes, ranks), rdma)
        shape = (LARGEST, layer.hidden, ranks, layer.experts)
        rdma = max(deep_ep.Buffer.get_low_latency_rdma_size_hint(*shape), rdma)
        qps = max(deep_ep.Buffer.num_sms, layer.experts // ranks)
        self.buffer = deep_ep.Buffer(
            world, nvl, rdma, low_latency_mode=True, num_qps_per_rank=qps, **fabric
        )
        self.shape = (LARGEST, layer.hidden, layer.experts)
        self.mode = ""

    def as_normal(self) -> Any:
        self.mode = "normal"
        return self.buffer

    def as_low_latency(self) -> Any:
        if self.mode == "normal" and self.buffer.low_latency_mode:
            self.buffer.clean_low_latency_buffer(*self.shape)
        self.mode = "low latency"
        return self.buffer


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("fp8", [False, True])
def test_prefill_and_decode_on_one_buffer(
    run: Callable[..., None], fp8: bool, asynchronous: bool
) -> None:
    """Mode "auto": batches of prefill go the normal way, those of decode at low latency."""

    def rank(world: tokenyard.World) -> None:
        # GB200 with CUDA 13 asks for fabric handles, which ranks of one host do not need.
        shared = Shared(world, LAYER, allow_mnnvl=True, use_fabric=True)
        for seed, normal in enumerate((True, False, False, True, False)):
            layer = replace(LAYER, seed=seed)
            calls = Dispatcher(shared, layer, asynchronous=asynchronous, hooks=not asynchronous)
            if normal:
                calls.normal_dispatch_a(*given(world, layer), fp8)
                calls.normal_combine_a(calls.normal_dispatch_b())
                home = calls.normal_combine_b()
            else:
                calls.low_latency_dispatch_a(*given(world, layer), fp8)
                calls.low_latency_combine_a(calls.low_latency_dispatch_b())
                home = calls.low_latency_combine_b()
            within = dict(tolerance=FP8_WITHIN) if fp8 else {}
            assert_sums(numbers(home), layer.result(world.rank), **within)

    run(rank)


@pytest.mark.parametrize("decode", [False, True])
def test_two_batch_overlap(run: Callable[..., None], decode: bool) -> None:
    """Two batches go through two layers in stages; in decoding the second is two stages behind."""

    def rank(world: tokenyard.World) -> None:
        shared = Shared(world, LAYER)
        layers = [[replace(LAYER, seed=2 * batch + at) for at in range(2)] for batch in range(2)]

        def stages(batch: int) -> Any:
            """Yields at the ends of the stages of one batch."""
            for layer in layers[batch]:
                calls = Dispatcher(shared, layer, asynchronous=True, hooks=True)
                if decode:
                    yield  # The attention's first half.
                    yield
                    calls.low_latency_dispatch_a(*given(world, layer), False)
                    yield
                    calls.low_latency_combine_a(calls.low_latency_dispatch_b())
                    yield
                    home = calls.low_latency_combine_b()
                    yield
                else:
                    calls.normal_dispatch_a(*given(world, layer), False)
                    yield
                    calls.normal_combine_a(calls.normal_dispatch_b())
                    yield
                    home = calls.normal_combine_b()
                assert_sums(numbers(home), layer.result(world.rank))

        behind = 2 if decode else 0
        batches = [stages(0), stages(1)]
        going = [True, True]
        for _ in range(behind):
            next(batches[0])
        while any(going):
            for batch in range(2):
                if going[batch]:
                    going[batch] = next(batches[batch], "ended") != "ended"

    run(rank)


def test_single_batch_overlap_is_refused_unless_it_is_off() -> None:
    """It signals a combine from within the GEMM before; SGLang passes its options in both cases."""

    def rank(world: tokenyard.World) -> None:
        shared = Shared(world, replace(LAYER, ranks=1, tokens=(9,)))
        layer = replace(LAYER, ranks=1, tokens=(9,))
        signal = torch.zeros(4, dtype=torch.int32)
        on_hopper = dict(comp_signal=signal, block_m=64, threshold=32, num_sms=32)
        on_hopper |= dict(packed_recv_count=signal)
        on_blackwell = dict(src_signals=signal, src_signal_expect_value=100)
        for options in (on_hopper, on_blackwell):
            calls = Dispatcher(shared, layer, asynchronous=False, hooks=True)
            calls.low_latency_dispatch_a(*given(world, layer), False)
            results = calls.low_latency_dispatch_b()
            with pytest.raises(tokenyard.Unsupported, match="--enable-single-batch-overlap"):
                calls.low_latency_combine_a(results, overlap=True, **options)
            calls.low_latency_combine_a(results, overlap=False, **options)
            assert_sums(numbers(calls.low_latency_combine_b()), layer.result(world.rank))
        x, ids, _ = given(world, layer)
        with pytest.raises(tokenyard.Unsupported, match="--deepep-dispatcher-output-dtype bf16"):
            shared.buffer.low_latency_dispatch(
                x, ids, LARGEST, layer.experts, use_fp8=False, use_nvfp4=True
            )

    tokenyard.launch(rank, ranks=1, arena_bytes=128 << 20)


class Elastic:
    """SGLang's dispatcher "deepep_v2": one ElasticBuffer per process, remade if its key changes."""

    def __init__(self, world: tokenyard.World, layer: Layer, rows_as: str) -> None:
        self.world, self.layer, self.rows_as = world, layer, rows_as
        self.buffer: Any = None
        self.key: Any = None

    def buffer_of(self, largest: int) -> Any:
        key = (self.layer.hidden, self.layer.topk, largest)
        if self.buffer is None or self.key != key:
            self.buffer = None  # Dropped without destroy(), which DeepEP would refuse here.
            self.buffer = deep_ep.ElasticBuffer(
                self.world,
                num_max_tokens_per_rank=largest,
                hidden=self.layer.hidden,
                num_topk=self.layer.topk,
                use_fp8_dispatch=self.rows_as != "bf16",
                allow_hybrid_mode=False,
                sl_idx=0,
                prefer_overlap_with_compute=False,
            )
            assert self.buffer.num_bytes > 0
            self.key = key
        return self.buffer

    def run(self, largest: int, decode: bool, expands: bool) -> Any:
        """Runs one batch; returns its results."""
        layer, rank = self.layer, self.world.rank
        x, ids, weights = given(self.world, layer)
        idle = not decode and len(x) == 0
        if idle:  # A rank without tokens sends one of weight zero, whose result it drops.
            x = x.new_zeros(1, layer.hidden)
            ids = torch.arange(layer.topk, device=ids.device)[None]
            weights = weights.new_zeros(1, layer.topk)
        tokens = x
        columns = self.rows_as == "ue8m0" if expands else self.rows_as != "bf16"
        if self.rows_as != "bf16":
            tokens = cast(x, columns, self.rows_as == "ue8m0")
        buffer = self.buffer_of(largest)
        rows, local_ids, shares, handle, event = buffer.dispatch(
            tokens,
            topk_idx=ids,
            topk_weights=weights,
            num_experts=layer.experts,
            num_max_tokens_per_rank=largest,
            expert_alignment=ALIGNMENT,
            num_sms=0,
            use_tma_aligned_col_major_sf=columns and self.rows_as != "bf16",
            do_cpu_sync=not decode,
            do_expand=expands,
        )
        if event.event is not None:
            event.current_stream_wait()
        places = (rows[0] if isinstance(rows, tuple) else rows).shape[0]
        if isinstance(rows, tuple):
            assert not columns or rows[1].stride(0) == 1
            got = values_of(*rows)
        else:
            got = numbers(rows)
        ends = handle.psum_num_recv_tokens_per_expert.tolist()
        if expands:
            assert local_ids is None
            assert shares.shape == (places,)
            y = np.full(got.shape, np.nan)
            begin = 0
            for expert, end in enumerate(ends):
                number = rank * layer.local + expert
                part = layer.expert(number, got[begin:end].astype(np.float64))
                y[begin:end] = part * numbers(shares)[begin:end, None]
                begin = -(-end // ALIGNMENT) * ALIGNMENT
            results = torch.from_numpy(y).bfloat16().to(x.device)
        else:
            received = int(handle.psum_num_recv_tokens_per_scaleup_rank[-1].item())
            local_ids, shares = local_ids[:received], shares[:received]
            results = by_ids(layer, rank, got[:received], local_ids, shares).to(x.device)
        home, _, event = buffer.combine(results, handle=handle, topk_weights=None)
        if event.event is not None:
            event.current_stream_wait()
        return home[:0] if idle else home


@pytest.mark.parametrize("rows_as", ["bf16", "fp8", "ue8m0"])
@pytest.mark.parametrize(("decode", "expands"), [(False, True), (False, False), (True, True)])
def test_deep_ep_v2(run: Callable[..., None], rows_as: str, decode: bool, expands: bool) -> None:
    """Prefill with rows by expert or as they come; decode with rows by expert, without a wait."""

    def rank(world: tokenyard.World) -> None:
        calls = Elastic(world, LAYER, rows_as)
        for _ in range(2):
            home = calls.run(LARGEST, decode, expands)
            seen = None
            if rows_as != "bf16":
                x = LAYER.given(world.rank)[0]
                seen = quantized(x, powers_of_two=rows_as == "ue8m0")[2]
            assert_sums(numbers(home), LAYER.result(world.rank, seen))

    run(rank)


def test_a_buffer_of_deep_ep_v2_is_remade_when_its_key_changes() -> None:
    """Dropped buffers give their memory back, or the world's would run out."""

    def rank(world: tokenyard.World) -> None:
        calls = Elastic(world, LAYER, "bf16")
        for largest in (32, 64, 32, 128, 64, 32):
            home = calls.run(largest, False, True)
            assert_sums(numbers(home), LAYER.result(world.rank))

    tokenyard.launch(rank, ranks=LAYER.ranks, arena_bytes=24 << 20)


def test_elastic_expert_parallelism_goes_on_without_a_rank() -> None:
    """The dispatcher "mooncake": its first call waits as long as it can, later ones ten seconds.

    A rank that stays away becomes inactive; the others' results lack only its experts.
    """
    layer = Layer(tokens=(9, 7, 5), topk=2)
    away = 2

    def rank(world: tokenyard.World) -> None:
        size = MooncakeBuffer.get_ep_buffer_size_hint(
            LARGEST, layer.hidden, layer.ranks, layer.experts
        )
        buffer = MooncakeBuffer(world, size)
        active = torch.ones(layer.ranks, dtype=torch.int32)
        timeout = -1
        for step in range(4):
            if step == 1 and world.rank == away:
                break  # It waits at the end instead.
            of_step = replace(layer, seed=step)
            x, ids, weights = given(world, of_step)
            rows, counts, handle, _, hook = buffer.dispatch(
                x,
                ids,
                active,
                LARGEST,
                layer.experts,
                timeout,
                use_fp8=True,
                async_finish=False,
                return_recv_hook=True,
            )
            hook()
            got = values_of(*rows)
            y = torch.zeros(got.shape)
            for expert, count in enumerate(counts.tolist()):
                number = world.rank * layer.local + expert
                part = layer.expert(number, got[expert, :count].astype(np.float64))
                y[expert, :count] = torch.from_numpy(part)
            home, _, hook = buffer.combine(
                y.bfloat16(),
                ids,
                weights,
                active,
                timeout,
                handle,
                async_finish=False,
                return_recv_hook=True,
            )
            hook()
            timeout = 3_000_000
            assert active.tolist() == [1, 1, int(step == 0)]
            lacking = of_step
            if step:
                mine = ids // layer.local == away
                lacking = Without(of_step, mine.numpy(), world.rank)  # type: ignore[assignment]
            assert_sums(numbers(home), lacking.result(world.rank), FP8_WITHIN)
        everybody.wait(60)

    everybody = threading.Barrier(layer.ranks)
    tokenyard.launch(rank, ranks=layer.ranks, arena_bytes=128 << 20)


class Without:
    """A layer without some of a rank's choices."""

    def __init__(self, layer: Layer, lost: Any, rank: int) -> None:
        self.layer, self.lost, self.rank = layer, lost, rank

    def result(self, rank: int) -> tuple[Any, Any]:
        x, ids, weights = self.layer.given(rank)
        total, magnitude = np.zeros(x.shape), np.zeros(x.shape)
        for token, choice in np.argwhere(~self.lost):
            one = self.layer.expert(ids[token, choice], x[token : token + 1].astype(np.float64))[0]
            total[token] += weights[token, choice] * one
            magnitude[token] += np.abs(weights[token, choice] * one)
        return total, magnitude
