"""torch tensors on GPUs: as many ranks as there are GPUs, and several on one."""

from __future__ import annotations

from typing import Any

import pytest

import tokenyard

try:
    import torch

    GPUS = torch.cuda.device_count()
except ModuleNotFoundError:
    GPUS = 0

pytestmark = pytest.mark.skipif(GPUS == 0, reason="needs torch and a GPU")
TOKENS, HIDDEN, TOPK = 300, 1024, 4
RANKS = sorted({1, 2, max(GPUS, 1)})


def make(world: tokenyard.World) -> tokenyard.ExpertParallel:
    torch.cuda.set_device(world.device_index)
    return tokenyard.ExpertParallel(
        world, experts=8 * world.size, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS
    )


def inputs(world: tokenyard.World) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(world.rank)
    x = torch.randint(-8, 9, (TOKENS, HIDDEN), generator=generator).to(torch.bfloat16)
    topk_idx = torch.rand(TOKENS, 8 * world.size, generator=generator).argsort(dim=1)[:, :TOPK]
    topk_weights = torch.rand(TOKENS, TOPK, generator=generator)
    device = f"cuda:{world.device_index}"
    return x.to(device), topk_idx.contiguous().to(device), topk_weights.to(device)


@pytest.mark.parametrize("ranks", RANKS)
def test_there_and_back(ranks: int) -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        x, topk_idx, topk_weights = inputs(world)
        for _ in range(3):
            received = exchange.dispatch(x, topk_idx, topk_weights)
            assert received.x.device == x.device
            assert received.x.dtype == torch.bfloat16
            buffer = exchange.combine_buffer(received)
            buffer.copy_(received.x)
            home = exchange.combine(buffer, received.route, received.topk_weights)
            assert isinstance(home, tokenyard.Combined)
            # Small integers: the sum over the ranks that a token went to is exact.
            went_to = torch.nn.functional.one_hot(topk_idx // 8, world.size).amax(1).sum(1)
            assert torch.equal(home.x, (x.float() * went_to[:, None]).to(torch.bfloat16))
            assert torch.equal(home.topk_weights, topk_weights)
        again = exchange.dispatch(x + x, route=received.route)
        assert torch.equal(again.x, received.x + received.x)
        exchange.wait()

    tokenyard.launch(layer, ranks=ranks, device="cuda")


def test_work_is_ordered_on_torchs_current_stream() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        x, topk_idx, topk_weights = inputs(world)
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(50_000_000)  # So that work on any other stream would be too early.
            x += 1
            received = exchange.dispatch(x, topk_idx, topk_weights)
            home = exchange.combine(received.x, received.route)
            went_to = torch.nn.functional.one_hot(topk_idx // 8, world.size).amax(1).sum(1)
            assert torch.equal(home, (x.float() * went_to[:, None]).to(torch.bfloat16))

    tokenyard.launch(layer, ranks=GPUS, device="cuda")


def test_memory_comes_back_when_tensors_die() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        tensors = inputs(world)
        for _ in range(300):
            received = exchange.dispatch(*tensors)
            exchange.combine(received.x, received.route)

    tokenyard.launch(layer, ranks=GPUS, device="cuda", arena_bytes=64 << 20)


def test_host_tensors_are_refused_by_name() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        x, topk_idx, topk_weights = inputs(world)
        with pytest.raises(tokenyard.InvalidArgument, match="device cpu") as caught:
            exchange.dispatch(x.cpu(), topk_idx, topk_weights)
        assert caught.value.argument == "x"
        with pytest.raises(tokenyard.InvalidArgument, match="device cpu") as caught:
            exchange.dispatch(x, topk_idx, topk_weights.cpu())
        assert caught.value.argument == "topk_weights"

    tokenyard.launch(layer, ranks=1, device="cuda")


def there_and_back_in_a_process(world: tokenyard.World) -> bool:
    exchange = make(world)
    x, topk_idx, topk_weights = inputs(world)
    received = exchange.dispatch(x, topk_idx, topk_weights)
    home = exchange.combine(received.x, received.route)
    went_to = torch.nn.functional.one_hot(topk_idx // 8, world.size).amax(1).sum(1)
    return torch.equal(home, (x.float() * went_to[:, None]).to(torch.bfloat16))


@pytest.mark.skipif(GPUS < 2, reason="a process a rank needs a GPU a rank")
def test_a_process_a_rank() -> None:
    results = tokenyard.launch(
        there_and_back_in_a_process, ranks=GPUS, device="cuda", processes=True
    )
    assert results == [True] * GPUS
