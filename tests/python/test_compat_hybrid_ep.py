"""HybridEPBuffer of the deep_ep package beyond Megatron's calls: FP8, growth, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from deep_ep_batch import device_of, needs_torch, torch
from frameworks_reference import Layer, quantized
from megatron_calls import HybridEP, numbers

import tokenyard

if torch is not None:
    import deep_ep
    from deep_ep import hybrid_sizes

pytestmark = needs_torch

LAYER = Layer(tokens=(30, 30, 30), holes=0.1)
MEGABYTE = 1 << 20


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
