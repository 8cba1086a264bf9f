"""Backend tokenyard under torch.distributed. Needs torch, and a C++20 compiler to build with."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from programs import torchrun
from ranks import results_of
from torch_ranks import dist, needs_torch, torch

import tokenyard
from tokenyard.world.rendezvous import HeldPort

pytestmark = needs_torch

RANKS = 3
REDUCED = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32"]
REDUCED += ["float64", "complex64", "complex128"]


def in_group(say: Any, rank: int, size: int, port: int, body: Callable[[int, int], Any]) -> Any:
    import tokenyard.torch  # noqa: F401  Registers the backend.

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("tokenyard", rank=rank, world_size=size, timeout=timedelta(seconds=60))
    try:
        return body(rank, size)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def run(body: Callable[[int, int], Any], size: int = RANKS) -> list[Any]:
    port = HeldPort()
    try:
        return results_of(in_group, size, port.number, body)
    finally:
        port.release()


def reductions(rank: int, size: int) -> None:
    for name in REDUCED:
        dtype = getattr(torch, name)
        mine = torch.full((3, 5), rank + 1).to(dtype)
        dist.all_reduce(mine)
        wanted = torch.tensor(True if name == "bool" else size * (size + 1) // 2).to(dtype)
        assert (mine == wanted).all(), (name, mine)
    for op, wanted in {
        dist.ReduceOp.AVG: (size + 1) / 2,
        dist.ReduceOp.MIN: 1,
        dist.ReduceOp.MAX: size,
        dist.ReduceOp.PRODUCT: 6,
    }.items():
        mine = torch.full((7,), float(rank + 1))
        dist.all_reduce(mine, op)
        assert (mine == wanted).all(), op
    bits = torch.tensor([1 << rank])
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    assert bits.item() == 7
    dist.reduce(bits, 1, dist.ReduceOp.BXOR)
    assert bits.item() == 7

    out = torch.empty(4)
    whole = torch.arange(4 * size, dtype=torch.float32)
    dist.reduce_scatter_tensor(out, whole)
    assert torch.equal(out, size * whole.chunk(size)[rank])
    dist.reduce_scatter(out, list(whole.clone().chunk(size)), dist.ReduceOp.MAX)
    assert torch.equal(out, whole.chunk(size)[rank])
    with dist._coalescing_manager():
        pair = [torch.ones(3), torch.ones(2)]
        for tensor in pair:
            dist.all_reduce(tensor)
    assert all((tensor == size).all() for tensor in pair)


def moves(rank: int, size: int) -> None:
    mine = torch.full((2, 3), rank, dtype=torch.bfloat16)
    gathered = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(gathered, mine)
    assert all((tensor == source).all() for source, tensor in enumerate(gathered))
    whole = torch.empty(2 * size, 3, dtype=torch.bfloat16)
    dist.all_gather_into_tensor(whole, mine)
    assert torch.equal(whole, torch.cat(gathered))
    uneven = [torch.empty(source) for source in range(size)]
    dist.all_gather(uneven, torch.full((rank,), float(rank)))
    assert all((tensor == source).all() for source, tensor in enumerate(uneven))

    # Types that are only moved.
    eighths = torch.full((5,), rank).to(torch.float8_e4m3fn)
    dist.broadcast(eighths, 2)
    assert (eighths.float() == 2).all()

    lists = [torch.empty(4) for _ in range(size)] if rank == 1 else None
    dist.gather(torch.full((4,), float(rank)), lists, dst=1)
    if lists:
        assert [tensor[0].item() for tensor in lists] == [0, 1, 2]
    out = torch.empty(4)
    dist.scatter(out, [torch.full((4,), float(r)) for r in range(size)] if rank == 0 else None)
    assert (out == rank).all()

    # Rank r sends s + 1 rows to rank s.
    splits = [target + 1 for target in range(size)]
    given = torch.full((sum(splits), 2), rank)
    taken = torch.empty(size * (rank + 1), 2, dtype=given.dtype)
    dist.all_to_all_single(taken, given, [rank + 1] * size, splits)
    assert torch.equal(taken[:, 0], torch.arange(size).repeat_interleave(rank + 1))
    outs = [torch.empty(rank + 1) for _ in range(size)]
    dist.all_to_all(outs, [torch.full((target + 1,), float(rank)) for target in range(size)])
    assert [tensor[0].item() for tensor in outs] == [0, 1, 2]
    dist.barrier()


def messages(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    got = torch.empty(3)
    batch = [
        dist.P2POp(dist.isend, torch.full((3,), float(rank)), right),
        dist.P2POp(dist.irecv, got, left),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert (got == left).all()
    if rank == 0:
        for _ in range(1, size):
            source = dist.recv(got, tag=5)
            assert (got == source).all()
    else:
        dist.send(torch.full((3,), float(rank)), 0, tag=5)
    dist.barrier()  # A rank that leaves takes messages with it that were not received.


def work_and_futures(rank: int, size: int) -> None:
    tensors = [torch.ones(10_000) for _ in range(5)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [work.get_future().then(lambda done: done.value()[0].sum()) for work in works]
    assert [future.wait().item() for future in futures] == [size * 10_000.0] * 5
    assert all(work.is_completed() and work.is_success() for work in works)
    dist.all_reduce(torch.ones(100_000), async_op=True)  # No rank waits for it.
    dist.barrier()
    work = dist.barrier(async_op=True)
    assert work.get_future().wait() == []

    got = torch.empty(3)
    receive = dist.irecv(got, (rank - 1) % size)
    with pytest.raises(tokenyard.PeerTimeout, match="timed out"):
        receive.wait(timedelta(milliseconds=50))
    dist.barrier()
    dist.send(torch.ones(3), (rank + 1) % size)
    receive.wait()
    dist.barrier()


def groups_and_objects(rank: int, size: int) -> None:
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": other} for other in range(size)]
    box = [f"of rank {rank}"]
    dist.broadcast_object_list(box, src=2)
    assert box == ["of rank 2"]

    for _ in range(3):  # A name may be used again once its group is gone.
        pair = dist.new_group([2, 0], use_local_synchronization=False)
        if rank != 1:
            total = torch.tensor(rank)
            dist.all_reduce(total, group=pair)
            assert total.item() == 2
            assert tokenyard.torch.collectives(pair) is tokenyard.torch.collectives()
            dist.destroy_process_group(pair)
    late = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 0:
        with pytest.raises(TimeoutError) as caught:
            dist.all_reduce(torch.ones(3), group=late)
        assert isinstance(caught.value, tokenyard.PeerTimeout)
    tokenyard.torch.monitored_barrier()


def data_parallel(rank: int, size: int) -> None:
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(rank)  # The first rank's, by DDP.
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(9, 4), torch.nn.Linear(4, 2))
    )
    torch.manual_seed(10 + rank)
    model(torch.randn(5, 9)).square().sum().backward()
    same_everywhere([parameter.grad for parameter in model.parameters()], size)


def same_everywhere(tensors: list[torch.Tensor], size: int) -> None:
    for tensor in tensors:
        gathered = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(gathered, tensor)
        assert all(torch.equal(other, tensor) for other in gathered)


def fully_sharded(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    mesh = init_device_mesh("cpu", (size,))
    fully_shard(model, mesh=mesh)
    inputs = [torch.randn(4, 8, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    model(inputs[rank]).square().mean().backward()
    for one in inputs:
        (plain(one).square().mean() / size).backward()
    for sharded, whole in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(sharded.grad.full_tensor(), whole.grad)


def distributed_tensors(rank: int, size: int) -> None:
    from torch.distributed._functional_collectives import all_gather_tensor, all_reduce
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    left, right = torch.randn(6, 8), torch.randn(8, 5)
    product = distribute_tensor(left, mesh, [Shard(1)]) @ distribute_tensor(right, mesh, [Shard(0)])
    torch.testing.assert_close(product.full_tensor(), left @ right)
    sharded = distribute_tensor(left, mesh, [Shard(0)])
    assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), left)
    assert torch.equal(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), left)

    assert (all_reduce(torch.ones(3), "sum", mesh.get_group()) == size).all()
    assert all_gather_tensor(torch.full((2,), rank), 0, mesh.get_group()).tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]


def refusals(rank: int, size: int) -> None:
    with pytest.raises(tokenyard.InvalidArgument, match="do not share memory"):
        dist.all_reduce(torch.ones(4, 1).expand(4, 4))
    with pytest.raises(TypeError, match="does not reduce"):
        dist.all_reduce(torch.ones(4).to(torch.float8_e4m3fn))
    with pytest.raises(tokenyard.InvalidArgument, match=r"input: .* 3 ranks divide equally"):
        dist.all_to_all_single(torch.empty(7), torch.empty(7))
    with pytest.raises(tokenyard.InvalidArgument, match="gloo"):
        tokenyard.torch.collectives(dist.new_group(backend="gloo"))
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        dist.all_reduce(torch.ones(8 if rank == 1 else 7))
    for word in ("7", "8", "all_reduce"):
        assert word in str(caught.value)


def again(rank: int, size: int) -> None:
    """More jobs in the same processes and the same store."""
    dist.destroy_process_group()
    # One that stays: the store of env:// goes with rank 0's group.
    path = Path(tempfile.gettempdir()) / f"tokenyard-again-{os.environ['MASTER_PORT']}"
    store = dist.FileStore(str(path), size)
    for _ in range(2):
        dist.init_process_group("tokenyard", store=store, rank=rank, world_size=size)
        total = torch.tensor(rank)
        dist.all_reduce(total)
        assert total.item() == 3
        dist.destroy_process_group()
    path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "body",
    [
        reductions,
        moves,
        messages,
        work_and_futures,
        groups_and_objects,
        data_parallel,
        fully_sharded,
        distributed_tensors,
        refusals,
        again,
    ],
)
def test_under_torch(body: Callable[[int, int], Any]) -> None:
    run(body)


TORCHRUN = """
import torch, torch.distributed as dist, tokenyard.torch
dist.init_process_group("tokenyard")
total = torch.ones(3)
dist.all_reduce(total)
assert (total == 4).all()
dist.destroy_process_group()
"""


def test_under_torchrun(tmp_path: Path) -> None:
    done = torchrun(TORCHRUN, 4, tmp_path)
    assert done.returncode == 0, done.stderr
