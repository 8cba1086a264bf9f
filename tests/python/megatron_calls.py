"""The calls that Megatron-Core 0.19.2 makes of deep_ep, in its order, with their backward passes.

Its files, in core/transformer/moe: fused_a2a.py has the calls, and token_dispatcher.py the flex
dispatcher, whose backends "deepep" and "hybridep" these are.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from deep_ep_batch import torch
from frameworks_reference import GAINS, Layer, assert_sums

import tokenyard

if torch is not None:
    import deep_ep
    from deep_ep.utils import EventHandle, EventOverlap


def numbers(tensor: Any) -> Any:
    return tensor.detach().float().cpu().numpy()


class DeepEP:
    """The backend "deepep": one rank's calls, and the buffer that all of its layers share."""

    def __init__(self, group: Any, device: str | None = None) -> None:
        self.group, self.device = group, device
        self.buffer: Any = None
        deep_ep.Buffer.set_num_sms(20)

    def buffer_of(self, x: Any) -> Any:
        """Returns the buffer; makes another one if that is too small."""
        hidden_bytes = x.size(1) * max(x.element_size(), 2)
        ranks = self.group.size if isinstance(self.group, tokenyard.World) else self.group.size()
        nvl, rdma = 0, 0
        for config in (
            deep_ep.Buffer.get_dispatch_config(ranks),
            deep_ep.Buffer.get_combine_config(ranks),
        ):
            nvl = max(config.get_nvl_buffer_size_hint(hidden_bytes, ranks), nvl)
            rdma = max(config.get_rdma_buffer_size_hint(hidden_bytes, ranks), rdma)
        buffer = self.buffer
        if (
            buffer is None
            or buffer.group != self.group
            or buffer.num_nvl_bytes < nvl
            or buffer.num_rdma_bytes < rdma
        ):
            self.buffer = deep_ep.Buffer(self.group, nvl, rdma, device=self.device)
        return self.buffer

    def dispatch(self, x: Any, ids: Any, weights: Any, experts: int, asynchronous: bool) -> Any:
        calls = self

        class Dispatch(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any, ids: Any, weights: Any) -> Any:
                buffer = calls.buffer_of(x)
                before = EventOverlap(EventHandle()) if asynchronous else None
                how = dict(async_finish=asynchronous, allocate_on_comm_stream=asynchronous)
                per_rank, per_rdma, per_expert, in_rank, event = buffer.get_dispatch_layout(
                    ids, experts, previous_event=before, **how
                )
                rows, ids_there, weights_there, counts, handle, after = buffer.dispatch(
                    x,
                    topk_idx=ids,
                    topk_weights=weights,
                    num_tokens_per_rank=per_rank,
                    num_tokens_per_rdma_rank=per_rdma,
                    is_token_in_rank=in_rank,
                    num_tokens_per_expert=per_expert,
                    previous_event=event,
                    **how,
                )
                if asynchronous:
                    after.current_stream_wait()
                ctx.handle = handle
                return rows, ids_there, weights_there, torch.tensor(counts), handle

            @staticmethod
            def backward(ctx: Any, of_rows: Any, _: Any, of_weights: Any, *others: Any) -> Any:
                before = EventOverlap(EventHandle()) if asynchronous else None
                grad, grad_weights, after = calls.buffer_of(of_rows).combine(
                    of_rows.contiguous(),
                    ctx.handle,
                    topk_weights=of_weights.float(),
                    previous_event=before,
                    async_finish=asynchronous,
                    allocate_on_comm_stream=asynchronous,
                )
                if asynchronous:
                    after.current_stream_wait()
                return grad, None, grad_weights

        return Dispatch.apply(x, ids, weights)

    def combine(self, y: Any, handle: Any, asynchronous: bool) -> Any:
        calls = self

        class Combine(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, y: Any) -> Any:
                before = EventOverlap(EventHandle()) if asynchronous else None
                home, _, after = calls.buffer_of(y).combine(
                    y,
                    handle=handle,
                    async_finish=asynchronous,
                    previous_event=before,
                    allocate_on_comm_stream=asynchronous,
                )
                if asynchronous:
                    after.current_stream_wait()
                return home

            @staticmethod
            def backward(ctx: Any, of_home: Any) -> Any:
                before = EventOverlap(EventHandle()) if asynchronous else None
                rows, *_, after = calls.buffer_of(of_home).dispatch(
                    of_home.contiguous(),
                    handle=handle,
                    previous_event=before,
                    async_finish=asynchronous,
                    allocate_on_comm_stream=asynchronous,
                )
                if asynchronous:
                    after.current_stream_wait()
                return rows

        return Combine.apply(y)


def computed(rows: Any, weights: Any, counts: Any, first: int) -> Any:
    """Returns the weighted results of rows grouped by expert, as torch differentiates them."""
    parts = []
    for expert, part in enumerate(rows.float().split([int(count) for count in counts])):
        number = first + expert
        parts.append(part.roll(number, 1) * GAINS[number % len(GAINS)])
    return (torch.cat(parts) * weights[:, None]).to(rows.dtype)


def assert_gradients(layer: Layer, rank: int, x: Any, probs: Any, of_results: Any) -> None:
    """Checks gradients that BF16 rows have carried."""
    of_tokens, of_weights = layer.gradients(rank, of_results)
    magnitude = np.abs(of_tokens).max(initial=0) + 1e-6
    assert (np.abs(numbers(x.grad) - of_tokens) <= 2**-6 * magnitude).all()
    chosen = of_weights != 0
    error = np.abs(numbers(probs.grad) - of_weights)[chosen]
    assert (error <= 2**-6 * layer.hidden**0.5 * 8).all()


def train_with_deep_ep(calls: DeepEP, layer: Layer, rank: int, device: str, how: bool) -> None:
    """Runs a layer forward and backward as the flex dispatcher does with backend "deepep"."""
    x = torch.from_numpy(layer.given(rank)[0]).bfloat16().to(device).requires_grad_()
    probs = torch.from_numpy(layer.routing(rank)[1]).to(device).requires_grad_()
    chosen_probs, ids = torch.topk(probs, layer.topk, dim=-1)
    ids = ids.masked_fill(chosen_probs == 0, -1)  # Dropped tokens, with a capacity factor.
    rows, ids_there, weights_there, counts, handle = calls.dispatch(
        x.contiguous(), ids, chosen_probs, layer.experts, how
    )
    assert counts.tolist() == layer.per_expert(rank)
    # From indices to a map of this rank's experts, and from there to rows by expert.
    chosen = torch.zeros(len(rows), layer.local, dtype=torch.bool, device=device)
    table = torch.zeros(len(rows), layer.local, device=device)
    some = ids_there != -1
    at = torch.arange(len(rows), device=device).repeat_interleave(some.sum(1))
    chosen[at, ids_there[some]] = True
    table = table.index_put((at, ids_there[some]), weights_there[some])
    expert, row = chosen.T.nonzero(as_tuple=True)
    y = computed(rows[row], table[row, expert], counts, rank * layer.local)
    results = torch.zeros_like(rows, dtype=torch.float32).index_add(0, row, y.float())
    home = calls.combine(results.to(rows.dtype), handle, how)
    assert_sums(numbers(home), layer.result(rank), 2**-6)
    of_results = np.random.default_rng(rank).standard_normal(home.shape).astype(np.float32)
    home.backward(torch.from_numpy(of_results).bfloat16().to(device))
    assert_gradients(layer, rank, x, probs, of_results)


class HybridEP:
    """The backend "hybridep": one rank's calls, and the buffer that all of its layers share."""

    def __init__(self, group: Any, **options: Any) -> None:
        self.group, self.options = group, options
        self.buffer: Any = None

    def dispatch(
        self, x: Any, chosen: Any, probs: Any, local: int, pad: Any, places: Any, fused: bool
    ) -> Any:
        calls = self
        if fused:
            taken = inspect.signature(deep_ep.HybridEPBuffer.dispatch_with_permute).parameters
            assert "fuse_permute_dispatch" in taken
        if self.buffer is None:
            tokens, hidden = x.shape[-2:]
            self.buffer = deep_ep.HybridEPBuffer(
                group=self.group,
                hidden_dim=hidden,
                max_num_of_tokens_per_rank=tokens,
                num_local_experts=local,
                use_fp8=False,
                num_sms_dispatch_api=8,
                num_sms_combine_api=8,
                num_sms_preprocessing_api=108,
                **self.options,
            )

        class Dispatch(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any, probs: Any) -> Any:
                given = calls.buffer.dispatch_with_permute(
                    hidden=x,
                    routing_map=chosen,
                    probs=probs,
                    scaling_factor=None,
                    num_of_experts_per_rank=local,
                    pad_multiple=pad,
                    num_permuted_tokens=places,
                    non_blocking=places is not None,
                    **(dict(fuse_permute_dispatch=True) if fused else {}),
                )
                ctx.handle = given[-1]
                return given

            @staticmethod
            def backward(ctx: Any, of_rows: Any, of_probs: Any, *others: Any) -> Any:
                return calls.buffer.combine_with_unpermute(
                    hidden=of_rows,
                    probs=of_probs,
                    handle=ctx.handle,
                    pad_multiple=pad,
                    **(dict(fuse_unpermute_combine=True) if fused else {}),
                )

        return Dispatch.apply(x, probs)

    def combine(self, y: Any, handle: Any, places: Any, pad: Any, fused: bool) -> Any:
        calls = self

        class Combine(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, y: Any) -> Any:
                how = dict(fuse_unpermute_combine=True) if fused else {}
                return calls.buffer.combine_with_unpermute(
                    hidden=y, handle=handle, pad_multiple=pad, **how
                )[0]

            @staticmethod
            def backward(ctx: Any, of_home: Any) -> Any:
                how = dict(fuse_permute_dispatch=True) if fused else {}
                return calls.buffer.dispatch_with_permute(
                    hidden=of_home,
                    scaling_factor=None,
                    handle=handle,
                    pad_multiple=pad,
                    num_permuted_tokens=places,
                    **how,
                )[0]

        return Combine.apply(y)


def train_with_hybrid_ep(
    calls: HybridEP,
    layer: Layer,
    rank: int,
    device: str,
    pad: int | None = None,
    places: int | None = None,
    fused: bool = False,
) -> None:
    """Runs a layer forward and backward as the flex dispatcher does with backend "hybridep"."""
    chosen, table = layer.routing(rank)
    x = torch.from_numpy(layer.given(rank)[0]).bfloat16().to(device).requires_grad_()
    probs = torch.from_numpy(table).to(device).requires_grad_()
    # Uneven inputs are padded to the group's largest, a multiple of 64, and trimmed at the end.
    more = max(layer.tokens) - len(x)
    more += -max(layer.tokens) % 64 if more or len(set(layer.tokens)) > 1 else 0
    wide = torch.cat([x, x.new_zeros(more, layer.hidden)])
    wide_probs = torch.cat([probs, probs.new_zeros(more, layer.experts)])
    wide_map = torch.from_numpy(np.pad(chosen, ((0, more), (0, 0)))).to(device)
    rows, weights, scales, counts, handle = calls.dispatch(
        wide, wide_map, wide_probs, layer.local, pad, places, fused
    )
    expected_rows, expected_weights, expected_counts = layer.by_expert(rank, pad or 1)
    assert scales is None
    assert counts.dtype == torch.int64
    assert counts.tolist() == expected_counts
    used = len(expected_rows)
    assert len(rows) == len(weights) == (used if places is None else places)
    np.testing.assert_array_equal(numbers(rows[:used]), expected_rows)
    np.testing.assert_array_equal(numbers(weights[:used]), expected_weights.astype(np.float32))
    if places is None:
        assert counts.device.type == "cpu"
        kept: Any = counts.sum()  # As Megatron passes it on, a tensor.
        y = computed(rows, weights, counts, rank * layer.local)
    else:
        assert handle[-1].tolist() == [0]
        kept = places
        y = computed(rows[:used], weights[:used], counts, rank * layer.local)
        y = torch.cat([y, torch.full_like(rows[used:], torch.nan)])  # Nobody reads these.
    home = calls.combine(y, handle, kept, pad, fused)[: len(x)]
    assert_sums(numbers(home), layer.result(rank), 2**-6)
    of_results = np.random.default_rng(rank).standard_normal(home.shape).astype(np.float32)
    home.backward(torch.from_numpy(of_results).bfloat16().to(device))
    assert_gradients(layer, rank, x, probs, of_results)
