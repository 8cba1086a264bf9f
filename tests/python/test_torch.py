"""torch: CPU tensors through DLPack, worlds made from process groups and by torchrun."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from programs import torchrun

import tokenyard
from tokenyard.world.rendezvous import HeldPort

try:
    import torch
except ModuleNotFoundError:
    torch = None  # Skipped test by test: a file without tests counts as a failure.

pytestmark = pytest.mark.skipif(torch is None, reason="needs torch")

TORCHRUN = """
import tokenyard
with tokenyard.World.from_env(timeout=60) as world:
    assert world.all_gather(b"%d" % world.rank) == [b"%d" % rank for rank in range(world.size)]
    # A second world of the same job, as a library beside the program would make it.
    with tokenyard.World.from_env(timeout=60) as second:
        second.barrier()
    world.barrier()
    # In one write: what several processes print may meet between a line and its end.
    print(f"rank {world.rank} of {world.size}\\n", end="", flush=True)
"""


def inputs(rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(6, 16, generator=generator).to(torch.bfloat16)
    topk_idx = torch.rand(6, 8, generator=generator).argsort(dim=1)[:, :2].contiguous()
    return x, topk_idx, torch.rand(6, 2, generator=generator)


def test_tensors_come_back_as_tensors_and_equal_numpys() -> None:
    import ml_dtypes

    def layer(world: tokenyard.World) -> None:
        exchange = tokenyard.ExpertParallel(world, experts=8, hidden=16, topk=2, tokens_max=6)
        x, topk_idx, topk_weights = inputs(world.rank)
        received = exchange.dispatch(x, topk_idx, topk_weights)
        assert isinstance(received.x, torch.Tensor)
        assert received.x.dtype == torch.bfloat16
        assert received.topk_idx.dtype == torch.int32
        buffer = exchange.combine_buffer(received)
        buffer.copy_(received.x)
        home = exchange.combine(buffer, received.route, received.topk_weights)
        assert isinstance(home, tokenyard.Combined)
        assert torch.equal(home.topk_weights, topk_weights)

        same = exchange.dispatch(
            x.view(torch.int16).numpy().view(ml_dtypes.bfloat16),
            topk_idx.numpy(),
            topk_weights.numpy(),
        )
        assert isinstance(same.x, np.ndarray)
        bits = received.x.view(torch.int16).numpy()
        assert (same.x.view(np.int16) == bits).all()
        sums = exchange.combine(same.x, same.route)
        assert (sums.view(np.int16) == home.x.view(torch.int16).numpy()).all()

    tokenyard.launch(layer, ranks=2)


def test_kinds_are_not_mixed() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = tokenyard.ExpertParallel(world, experts=8, hidden=16, topk=2, tokens_max=6)
        x, topk_idx, topk_weights = inputs(0)
        with pytest.raises(tokenyard.InvalidArgument, match="numpy") as caught:
            exchange.dispatch(x, topk_idx.numpy(), topk_weights)
        assert caught.value.argument == "topk_idx"
        with pytest.raises(tokenyard.InvalidArgument, match="float64"):
            exchange.dispatch(x.double(), topk_idx, topk_weights)
        with pytest.raises(tokenyard.InvalidArgument, match="device cpu") as caught:
            exchange.dispatch(x.to("meta"), topk_idx, topk_weights)
        assert "device meta" in str(caught.value)

    tokenyard.launch(layer, ranks=1)


def test_a_tensor_with_a_gradient_is_taken_as_it_lies() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = tokenyard.ExpertParallel(world, experts=8, hidden=16, topk=2, tokens_max=6)
        x, topk_idx, topk_weights = inputs(0)
        received = exchange.dispatch(x.requires_grad_(), topk_idx, topk_weights)
        assert not received.x.requires_grad

    tokenyard.launch(layer, ranks=1)


def in_group(rank: int, port: int, queue: object) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=4)
    with tokenyard.World.from_torch(timeout=60) as everybody:
        assert (everybody.rank, everybody.size, everybody.device) == (rank, 4, "host")
        everybody.barrier()
    # A subset with its ranks in another order; the others get None.
    some = tokenyard.World.from_torch(ranks=[3, 1], timeout=60)
    # Two disjoint halves, each rank passing its own.
    mine = [0, 2] if rank in (0, 2) else [1, 3]
    with tokenyard.World.from_torch(ranks=mine, timeout=60) as half:
        seen = half.all_gather(b"%d" % rank)
    queue.put((rank, None if some is None else some.rank, seen))  # type: ignore[attr-defined]
    dist.barrier()
    dist.destroy_process_group()


def test_worlds_from_a_process_group() -> None:
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    port = HeldPort()
    torch.multiprocessing.spawn(in_group, (port.number, queue), nprocs=4)
    seen = sorted(queue.get(timeout=60) for _ in range(4))
    assert seen == [
        (0, None, [b"0", b"2"]),
        (1, 1, [b"1", b"3"]),
        (2, None, [b"0", b"2"]),
        (3, 0, [b"1", b"3"]),
    ]


def test_from_env_under_torchrun(tmp_path: Path) -> None:
    done = torchrun(TORCHRUN, 4, tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")[:4]) == [f"rank {rank} of 4" for rank in range(4)]
