"""Megatron's flex dispatcher over deep_ep, forward and backward, against a layer in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from deep_ep_batch import device_of, needs_torch, run_on, torch
from frameworks_reference import Layer
from megatron_calls import DeepEP, HybridEP, numbers, train_with_deep_ep, train_with_hybrid_ep

import tokenyard

pytestmark = needs_torch

LAYER = Layer(tokens=(30, 30, 30), holes=0.1)

Training = Callable[[tokenyard.World, Layer], None]


@pytest.fixture(params=["host", "cuda"])
def train(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Runs a training with its layer on all of the layer's ranks, on CUDA with one.

    Threads that share a GPU cannot run backward together. Threads with a GPU each may wait for one
    another in the driver (docs/torch.md).
    """

    def run(program: Training, layer: Layer = LAYER) -> None:
        ranks = layer.ranks
        if request.param == "cuda":
            ranks = 1
        part = replace(layer, ranks=ranks, tokens=layer.tokens[:ranks])
        run_on(request.param, partial(program, layer=part), ranks=ranks)

    return run


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_flex_dispatcher_over_deep_ep(train: Callable[..., None], asynchronous: bool) -> None:
    def rank(world: tokenyard.World, layer: Layer) -> None:
        calls = DeepEP(world)
        for seed in range(2):  # Of two layers, which share one buffer.
            one = replace(layer, seed=seed)
            train_with_deep_ep(calls, one, world.rank, device_of(world), asynchronous)

    train(rank)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("pad", "places"), [(None, None), (16, None), (16, 400), (None, 333)])
def test_the_flex_dispatcher_over_hybrid_ep(
    train: Callable[..., None], pad: int | None, places: int | None, fused: bool
) -> None:
    """Without a number of places the host waits for the counts; with one it never does."""

    def rank(world: tokenyard.World, layer: Layer) -> None:
        calls = HybridEP(world)
        for seed in range(2):
            one = replace(layer, seed=seed)
            number, device = world.rank, device_of(world)
            train_with_hybrid_ep(calls, one, number, device, pad, places, fused)

    train(rank)


def test_uneven_inputs_are_padded_and_trimmed(train: Callable[..., None]) -> None:
    """moe_hybridep_pad_uneven_dispatch_inputs."""

    def rank(world: tokenyard.World, layer: Layer) -> None:
        train_with_hybrid_ep(HybridEP(world), layer, world.rank, device_of(world), 16)

    train(rank, Layer(tokens=(70, 30, 0)))


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
