"""The calls that Megatron-Core 0.19.2 makes of deep_ep, in its order, against a layer in NumPy.

Its files, in core/transformer/moe: fused_a2a.py has the calls and their backward passes, and
token_dispatcher.py the flex dispatcher, whose backends "deepep" and "hybridep" these are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from deep_ep_batch import device_of, needs_torch, torch
from frameworks_reference import GAINS, Layer, assert_sums, quantized

import tokenyard

if torch is not None:
    import deep_ep
    from deep_ep import hybrid_sizes
    from deep_ep.utils import EventHandle, EventOverlap

pytestmark = needs_torch

LAYER = Layer(tokens=(30, 30, 30), holes=0.1)
MEGABYTE = 1 << 20


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


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_flex_dispatcher_over_deep_ep(run: Callable[..., None], asynchronous: bool) -> None:
    def rank(world: tokenyard.World) -> None:
        calls = DeepEP(world)
        for seed in range(2):  # Of two layers, which share one buffer.
            layer = replace(LAYER, seed=seed)
            train_with_deep_ep(calls, layer, world.rank, device_of(world), asynchronous)

    run(rank)


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


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("pad", "places"), [(None, None), (16, None), (16, 400), (None, 333)])
def test_the_flex_dispatcher_over_hybrid_ep(
    run: Callable[..., None], pad: int | None, places: int | None, fused: bool
) -> None:
    """Without a number of places the host waits for the counts; with one it never does."""

    def rank(world: tokenyard.World) -> None:
        calls = HybridEP(world)
        for seed in range(2):
            layer = replace(LAYER, seed=seed)
            number, device = world.rank, device_of(world)
            train_with_hybrid_ep(calls, layer, number, device, pad, places, fused)

    run(rank)


def test_uneven_inputs_are_padded_and_trimmed(run: Callable[..., None]) -> None:
    """moe_hybridep_pad_uneven_dispatch_inputs."""

    def rank(world: tokenyard.World) -> None:
        layer = Layer(tokens=(70, 30, 0))
        train_with_hybrid_ep(HybridEP(world), layer, world.rank, device_of(world), 16)

    run(rank)


def test_results_are_the_callers_and_handles_outlive_later_calls(run: Callable[..., None]) -> None:
    """Of many layers: forward passes first, then the backward passes in reverse."""

    def rank(world: tokenyard.World) -> None:
        calls = HybridEP(world)
        device, number = device_of(world), world.rank
        kept = []
        for seed in range(6):
            layer = replace(LAYER, seed=seed)
            x = torch.from_numpy(layer.given(number)[0]).bfloat16().to(device)
            chosen, table = [torch.from_numpy(each).to(device) for each in layer.routing(number)]
            got = calls.dispatch(x, chosen, table, layer.local, None, None, False)
            kept.append((layer, x, got))
        for layer, x, (rows, weights, _, _, handle) in reversed(kept):
            expected = layer.by_expert(number)
            np.testing.assert_array_equal(numbers(rows), expected[0])
            np.testing.assert_array_equal(numbers(weights), expected[1].astype(np.float32))
            home, shares = calls.buffer.combine_with_unpermute(
                hidden=rows, probs=weights, handle=handle
            )
            chosen, table = layer.routing(number)
            np.testing.assert_array_equal(numbers(shares), table)
            times = chosen.sum(1, keepdims=True)
            assert np.abs(numbers(home) - times * numbers(x)).max() <= 2**-5 * times.max()

    run(rank)


def test_tokens_beyond_the_budget_are_dropped_and_flagged(run: Callable[..., None]) -> None:
    """moe_expert_rank_capacity_factor: experts are served in order until the places are used up."""
    pad, places = 8, 48

    def rank(world: tokenyard.World) -> None:
        layer, number, device = LAYER, world.rank, device_of(world)
        x = torch.from_numpy(layer.given(number)[0]).bfloat16().to(device)
        chosen, table = [torch.from_numpy(each).to(device) for each in layer.routing(number)]
        calls = HybridEP(world)
        rows, weights, _, counts, handle = calls.dispatch(
            x, chosen, table, layer.local, pad, places, False
        )
        expected_rows, expected_weights, expected_counts = layer.by_expert(number, pad)
        assert sum(expected_counts) > places
        assert handle[-1].tolist() == [1]
        ends = np.minimum(np.cumsum(expected_counts), places)
        assert counts.tolist() == np.diff(ends, prepend=0).tolist()
        np.testing.assert_array_equal(numbers(rows), expected_rows[:places])
        np.testing.assert_array_equal(numbers(weights), expected_weights[:places].astype("f4"))
        # Every rank drops as many as it has to; what is left of a token comes home.
        left = np.zeros((layer.ranks, len(x), layer.experts), bool)
        for holder in range(layer.ranks):
            begin = 0
            for expert in range(layer.local):
                wanted = holder * layer.local + expert
                all_maps = np.stack([layer.routing(source)[0] for source in range(layer.ranks)])
                where = np.argwhere(all_maps[:, :, wanted])
                for place, (source, token) in enumerate(where, begin):
                    left[source, token, wanted] = place < places
                begin += len(where) + -len(where) % pad
        assert (left[number] != layer.routing(number)[0]).any()
        for again in range(2):
            home, shares = calls.buffer.combine_with_unpermute(
                hidden=rows, probs=weights, handle=handle, pad_multiple=pad
            )
            times = left[number].sum(1, keepdims=True)
            assert np.abs(numbers(home) - times * numbers(x)).max() <= 2**-5 * 4
            np.testing.assert_array_equal(numbers(shares), layer.routing(number)[1] * left[number])
            if not again:  # The backward pass drops the same.
                rows, *_ = calls.buffer.dispatch_with_permute(
                    hidden=x, handle=handle, pad_multiple=pad, num_permuted_tokens=places
                )
                np.testing.assert_array_equal(numbers(rows), expected_rows[:places])

    run(rank)


def test_a_capacity_that_is_padded_up_to_gives_tokens_more_experts(
    run: Callable[..., None],
) -> None:
    """moe_pad_expert_input_to_capacity: each expert takes as many tokens, some of weight zero."""
    capacity = 14

    def rank(world: tokenyard.World) -> None:
        layer, number, device = LAYER, world.rank, device_of(world)
        x = torch.from_numpy(layer.given(number)[0]).bfloat16().to(device)
        table = torch.from_numpy(layer.routing(number)[1]).to(device)
        taken = table.topk(capacity, dim=0).indices
        chosen = torch.zeros_like(table, dtype=torch.bool).scatter_(0, taken, True)
        table = table * chosen
        assert chosen.sum(1).max() > layer.topk
        places = capacity * layer.ranks * layer.local
        calls = HybridEP(world)
        for number_of_places in (places, None):
            rows, weights, _, counts, handle = calls.dispatch(
                x, chosen, table, layer.local, None, number_of_places, False
            )
            assert counts.tolist() == [capacity * layer.ranks] * layer.local
            assert len(rows) == places
            home, shares = calls.buffer.combine_with_unpermute(
                hidden=rows, probs=weights, handle=handle
            )
            assert torch.equal(shares, table)
            times = chosen.sum(1, keepdim=True)
            assert (home.float() - times * x.float()).abs().max() <= 2**-5 * times.max()

    run(rank)


def test_a_buffer_grows_with_the_number_of_experts_of_a_token(run: Callable[..., None]) -> None:
    """Ranks agree on it, though one alone has such a token."""

    def rank(world: tokenyard.World) -> None:
        calls = HybridEP(world)
        for topk, seed in ((2, 1), (2, 2), (5, 3), (3, 4)):
            layer = replace(LAYER, topk=topk, seed=seed, holes=0.0)
            number, device = world.rank, device_of(world)
            chosen, table = [torch.from_numpy(each).to(device) for each in layer.routing(number)]
            if number == 1 and seed == 4:
                chosen[3] = True  # All twelve.
                table[3] = 0.25
            x = torch.from_numpy(layer.given(number)[0]).bfloat16().to(device)
            rows, weights, _, _, handle = calls.dispatch(
                x, chosen, table, layer.local, None, None, False
            )
            _, shares = calls.buffer.combine_with_unpermute(
                hidden=rows, probs=weights, handle=handle
            )
            assert torch.equal(shares, table)

    run(rank)


def test_more_experts_of_a_token_than_allowed_are_refused_on_all_ranks() -> None:
    def rank(world: tokenyard.World) -> None:
        layer = replace(LAYER, topk=2, holes=0.0)
        calls = HybridEP(world, choices_max=2)
        x = torch.from_numpy(layer.given(world.rank)[0]).bfloat16()
        chosen, table = [torch.from_numpy(each) for each in layer.routing(world.rank)]
        assert len(calls.dispatch(x, chosen, table, layer.local, None, None, False)) == 5
        if world.rank == 2:
            chosen = chosen.clone()
            chosen[7] = True
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            calls.dispatch(x, chosen, table, layer.local, None, None, False)
        assert "more than 2 experts" in " ".join(caught.value.__notes__)
        chosen, table = [torch.from_numpy(each) for each in layer.routing(world.rank)]
        assert len(calls.dispatch(x, chosen, table, layer.local, None, None, False)) == 5

    tokenyard.launch(rank, ranks=LAYER.ranks, arena_bytes=128 * MEGABYTE)


@pytest.mark.parametrize("permuted", [False, True])
def test_fp8_rows_and_scales_of_hybrid_ep(run: Callable[..., None], permuted: bool) -> None:
    """Megatron does not send FP8 yet; DeepEP's own test does, as bytes and by ids."""

    def rank(world: tokenyard.World) -> None:
        layer, number, device = replace(LAYER, holes=0.0), world.rank, device_of(world)
        buffer = deep_ep.HybridEPBuffer(world, layer.hidden, 30, layer.local, use_fp8=True)
        x, ids, weights = layer.given(number)
        codes, scales, _ = quantized(x)
        given = dict(
            hidden=torch.from_numpy(codes.view(np.uint8)).to(device),
            scaling_factor=torch.from_numpy(scales).to(device),
            topk_idx=torch.from_numpy(ids).to(device),
            topk_weights=torch.from_numpy(weights).to(device),
            num_of_experts=layer.experts,
        )
        arriving, local_ids, shares = layer.arriving(number)
        if permuted:
            rows, probs, steps, counts, handle = buffer.dispatch_with_permute(**given)
            expected, expected_probs, per_expert = layer.by_expert(number)
            assert counts.tolist() == per_expert
            np.testing.assert_array_equal(numbers(probs), expected_probs.astype(np.float32))
            assert len(handle) == 11
        else:
            rows, probs, steps, handle = buffer.dispatch(**given)
            expected = arriving
            first = number * layer.local
            table = np.zeros((len(arriving), layer.experts), np.float32)
            for row, choice in np.argwhere(local_ids >= 0):
                table[row, first + local_ids[row, choice]] = shares[row, choice]
            np.testing.assert_array_equal(numbers(probs), table)
            _, _, _, dispatched, local_map, tokens, _ = handle
            assert dispatched.tolist() == [len(arriving)]
            assert local_map.sum(0).tolist() == layer.per_expert(number)
            assert tokens == len(x)
        wanted, wanted_steps, _ = quantized(expected)
        assert rows.dtype == torch.uint8
        np.testing.assert_array_equal(rows.cpu().numpy(), wanted.view(np.uint8))
        np.testing.assert_array_equal(numbers(steps), wanted_steps)
        again = dict(hidden=given["hidden"], scaling_factor=given["scaling_factor"], handle=handle)
        table = torch.from_numpy(layer.routing(number)[1]).to(device)
        call = buffer.dispatch_with_permute if permuted else buffer.dispatch
        fresh_rows, fresh_probs, fresh_steps, *_ = call(**again, probs=2 * table)
        assert torch.equal(fresh_rows, rows)
        assert torch.equal(fresh_steps, steps)
        assert torch.equal(fresh_probs, 2 * probs)
        y = torch.from_numpy(expected).bfloat16().to(device)
        back = dict(hidden=y, probs=probs, handle=handle)
        combine = buffer.combine_with_unpermute if permuted else buffer.combine
        _, home_probs = combine(**back)
        assert torch.equal(home_probs, table)

    run(rank)


def test_what_cannot_be_had_of_hybrid_ep_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def rank(world: tokenyard.World) -> None:
        sizes = dict(hidden_dim=256, max_num_of_tokens_per_rank=8, num_local_experts=4)
        buffer = deep_ep.HybridEPBuffer(world, **sizes)
        x = torch.zeros(8, 256, dtype=torch.bfloat16)
        chosen = torch.zeros(8, 4, dtype=torch.bool)
        call = buffer.dispatch_with_permute
        handle = call(hidden=x, routing_map=chosen, pad_multiple=8)[-1]
        plain = buffer.dispatch(hidden=x, routing_map=chosen)[-1]
        wrong: list[tuple[str, Callable[[], Any]]] = [
            ("routing_map", lambda: call(hidden=x)),
            ("routing_map", lambda: call(hidden=x, routing_map=chosen.int())),
            ("routing_map", lambda: call(hidden=x, routing_map=chosen[:4])),
            ("probs", lambda: call(hidden=x, routing_map=chosen, probs=x)),
            ("num_permuted", lambda: call(hidden=x, routing_map=chosen, non_blocking=True)),
            ("scaling_factor", lambda: call(hidden=x.byte(), routing_map=chosen)),
            ("pad_multiple", lambda: call(hidden=x, handle=handle, pad_multiple=4)),
            ("hidden", lambda: call(hidden=x[:2], handle=handle, pad_multiple=8)),
            ("handle", lambda: call(hidden=x, handle=plain)),
            ("handle", lambda: buffer.combine(x, handle=handle)),
            ("handle", lambda: buffer.combine_with_unpermute(hidden=x)),
            ("num_of_experts", lambda: call(hidden=x, topk_idx=torch.zeros(8, 1).long())),
            ("num_of_experts_per_rank", lambda: call(hidden=x, num_of_experts_per_rank=8)),
        ]
        for argument, made in wrong:
            with pytest.raises(tokenyard.InvalidArgument, match=argument):
                made()
        with pytest.raises(tokenyard.Unsupported, match="update_template_config"):
            buffer.update_template_config(hidden_dim=256)
        with pytest.raises(tokenyard.Unsupported, match="one NVLink domain"):
            deep_ep.HybridEPBuffer(world, **sizes, num_of_hybrid_ep_ranks_per_nvlink_domain=2)
        monkeypatch.setenv("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "8")
        with pytest.raises(tokenyard.Unsupported, match="RANKS_PER_NVLINK_DOMAIN=8"):
            deep_ep.HybridEPBuffer(world, **sizes)
        monkeypatch.setenv("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "1")
        monkeypatch.setenv("TOKENYARD_HYBRID_EP_CHOICES", "many")
        with pytest.raises(tokenyard.InvalidArgument, match="TOKENYARD_HYBRID_EP_CHOICES"):
            deep_ep.HybridEPBuffer(world, **sizes)
        monkeypatch.setenv("TOKENYARD_HYBRID_EP_CHOICES", "2")
        assert deep_ep.HybridEPBuffer(world, **sizes)._choices == 2
        monkeypatch.setenv("TOKENYARD_HYBRID_EP_IMBALANCE", "0.5")
        with pytest.raises(tokenyard.InvalidArgument, match="1 or more in the environment"):
            hybrid_sizes.imbalance()
        monkeypatch.setenv("TOKENYARD_HYBRID_EP_IMBALANCE", "1.5")
        assert hybrid_sizes.imbalance() == 1.5
        # All tokens go to all experts, for which the arena is too small.
        monkeypatch.delenv("TOKENYARD_HYBRID_EP_CHOICES")
        x = torch.zeros(2000, 8192, dtype=torch.bfloat16)
        buffer = deep_ep.HybridEPBuffer(world, 8192, 2000, 4)
        with pytest.raises(tokenyard.InvalidArgument, match="arena_bytes") as caught:
            buffer.dispatch_with_permute(hidden=x, routing_map=torch.ones(2000, 4) > 0)
        assert "TOKENYARD_HYBRID_EP_IMBALANCE" in " ".join(caught.value.__notes__)

    tokenyard.launch(rank, ranks=1, arena_bytes=128 * MEGABYTE)
