"""Programs of ranks whose tensors take the way of CUDA tensors, on GPUs or, in tests, on the host.

Every function is a rank's part; `device` is that of its tensors.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

DTYPES = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
SIZES = (0, 1, 7, 1000)
OPS = {
    dist.ReduceOp.SUM: lambda rows: rows.sum(0),
    dist.ReduceOp.PRODUCT: lambda rows: rows.prod(0),
    dist.ReduceOp.MIN: lambda rows: rows.amin(0) if rows.shape[1] else rows[0],
    dist.ReduceOp.MAX: lambda rows: rows.amax(0) if rows.shape[1] else rows[0],
}


@contextlib.contextmanager
def in_group(
    rank: int,
    size: int,
    folder: Path,
    device: torch.device,
    backend: str = "tokenyard",
    **options: Any,
) -> Iterator[None]:
    """Joins the default group; the store is a file, so that any rank may die."""
    torch.set_num_threads(1)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    more: dict[str, Any] = {}
    if "tokenyard" in backend:
        import tokenyard.torch

        on_host = {} if device.type == "cuda" else {"_host_device": True}
        more["pg_options"] = tokenyard.torch.Options(silence=3, **on_host, **options)
    dist.init_process_group(
        backend,
        store=dist.FileStore(str(folder / "store"), -1),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
        **more,
    )
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def small(rank: int, elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns numbers whose sums and products over a few ranks are exact in every dtype."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(0, 3, (elements,), generator=generator).to(dtype).to(device)


def wide(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([tensor.cpu().to(torch.float64) for tensor in tensors])


def check_reductions(rank: int, size: int, device: torch.device) -> None:
    for dtype in DTYPES:
        for elements in SIZES:
            inputs = [small(one, elements * size, dtype, device) for one in range(size)]
            for op, reference in OPS.items():
                expected = reference(wide(inputs))
                x = inputs[rank].clone()
                dist.all_reduce(x, op)
                assert torch.equal(x.cpu().to(torch.float64), expected), (dtype, elements, op)

                x = inputs[rank].clone()
                dist.reduce(x, size - 1, op)
                wanted = expected if rank == size - 1 else wide([inputs[rank]])[0]
                assert torch.equal(x.cpu().to(torch.float64), wanted), (dtype, elements, op)

                part = torch.empty(elements, dtype=dtype, device=device)
                dist.reduce_scatter_tensor(part, inputs[rank], op)
                mine = expected.chunk(size)[rank] if elements else expected
                assert torch.equal(part.cpu().to(torch.float64), mine), (dtype, elements, op)

                dist.reduce_scatter(part, list(inputs[rank].clone().tensor_split(size)), op)
                assert torch.equal(part.cpu().to(torch.float64), mine), (dtype, elements, op)
        if dtype.is_floating_point:
            x = small(rank, 33, dtype, device)
            expected = wide([small(one, 33, dtype, device) for one in range(size)]).mean(0)
            dist.all_reduce(x, dist.ReduceOp.AVG)
            assert torch.allclose(x.cpu().to(torch.float64), expected, rtol=0.1), dtype
    bits = torch.tensor([1 << rank], device=device)
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    assert bits.item() == 2**size - 1
    x = torch.ones(5, device=device)
    dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
    assert (x == size / 2).all()
    x = torch.full((3,), complex(1, rank), device=device)
    dist.all_reduce(x)
    assert (x == complex(size, size * (size - 1) // 2)).all()
    x = torch.tensor([1.0, float("nan") if rank == 0 else 2.0], device=device)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    assert x[0] == 1
    assert x[1].isnan()


def same(seen: torch.Tensor, expected: torch.Tensor) -> None:
    assert seen.dtype == expected.dtype
    assert torch.equal(seen.view(torch.uint8), expected.view(torch.uint8)), seen.dtype


def check_moves(rank: int, size: int, device: torch.device) -> None:
    ranks = range(size)
    for dtype in (*DTYPES, torch.bool, torch.complex64, torch.float8_e5m2):
        for elements in SIZES:

            def content(one: int, count: int = elements, dtype: torch.dtype = dtype) -> Any:
                return torch.full((count,), one + 1).to(dtype).to(device)

            x = content(rank)
            whole = torch.cat([content(one).view(torch.uint8) for one in ranks])
            out = torch.empty(size * elements, dtype=dtype, device=device)
            dist.all_gather_into_tensor(out, x)
            same(out.view(torch.uint8), whole)
            parts = [torch.empty_like(x) for _ in ranks]
            dist.all_gather(parts, x)
            for one in ranks:
                same(parts[one], content(one))
            y = x.clone()
            dist.broadcast(y, size - 1)
            same(y, content(size - 1))
            lists = [torch.empty_like(x) for _ in ranks] if rank == 0 else None
            dist.gather(x, lists, dst=0)
            for one, part in enumerate(lists or ()):
                same(part, content(one))
            y = torch.empty_like(x)
            dist.scatter(y, [content(one) for one in ranks] if rank == 0 else None, src=0)
            same(y, x)
            sent = torch.cat([content(rank).view(torch.uint8) for _ in ranks]).view(dtype)
            out = torch.empty_like(sent)
            dist.all_to_all_single(out, sent)
            same(out.view(torch.uint8), whole)

            # Sizes that differ: rank r sends s + 1 elements to rank s.
            uneven = [torch.empty(one, dtype=dtype, device=device) for one in ranks]
            dist.all_gather(uneven, content(rank, rank))
            for one in ranks:
                same(uneven[one], content(one, one))
            outs = [torch.empty(rank + 1, dtype=dtype, device=device) for _ in ranks]
            dist.all_to_all(outs, [content(rank, one + 1) for one in ranks])
            for one in ranks:
                same(outs[one], content(one, rank + 1))

            after, before = (rank + 1) % size, (rank - 1) % size
            if size > 1:
                y = torch.empty_like(x)
                for work in dist.batch_isend_irecv(
                    [
                        dist.P2POp(dist.isend, x, after, tag=3),
                        dist.P2POp(dist.irecv, y, before, tag=3),
                    ]
                ):
                    work.wait()
                same(y, content(before))
                if rank == 0:
                    dist.send(x, 1, tag=5)
                elif rank == 1:
                    dist.recv(y, 0, tag=5)
                    same(y, content(0))
    splits = [one + 1 for one in ranks]
    given = torch.full((sum(splits), 2), rank, device=device)
    taken = torch.empty(size * (rank + 1), 2, dtype=given.dtype, device=device)
    dist.all_to_all_single(taken, given, [rank + 1] * size, splits)
    expected = torch.arange(size).repeat_interleave(rank + 1)
    assert torch.equal(taken[:, 0].cpu(), expected)
    input_list = [torch.full((one + 2,), 1.0, device=device) for one in ranks]
    part = torch.empty(rank + 2, device=device)
    dist.reduce_scatter(part, input_list)
    assert (part == size).all()
    dist.barrier()


def check_works(rank: int, size: int, device: torch.device) -> None:
    """Checks asynchronous calls, futures, coalesced calls and tensors with gaps."""
    x = torch.ones(1 << 16, device=device)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    y = x * 2
    assert (y == 2 * size).all()
    assert work.is_completed()
    assert work.is_success()
    x = torch.full((100,), float(rank), device=device)
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] + 1)
    assert (future.wait() == size * (size - 1) / 2 + 1).all()
    tensors = [torch.ones(3, device=device), torch.ones(1000, device=device)]
    with dist._coalescing_manager(device=device):
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert all((tensor == size).all() for tensor in tensors)
    with dist._coalescing_manager(device=device, async_ops=True) as works:
        for tensor in tensors:
            dist.all_reduce(tensor)
    works.wait()
    assert all((tensor == size * size).all() for tensor in tensors)
    x = torch.ones(4, 6, device=device)
    dist.all_reduce(x.t())
    dist.all_reduce(x[:, 1::2])
    assert (x[:, ::2] == size).all()
    assert (x[:, 1::2] == size * size).all()
    outs = list(torch.zeros(size, 3, 2, device=device).transpose(1, 2))
    dist.all_gather(outs, torch.full((2, 3), float(rank), device=device))
    assert all((out == one).all() for one, out in enumerate(outs))
    halves = [dist.new_group([one for one in range(size) if one % 2 == part]) for part in (0, 1)]
    mine = torch.tensor([rank], device=device)
    dist.all_reduce(mine, group=halves[rank % 2])
    assert mine.item() == sum(one for one in range(size) if one % 2 == rank % 2)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        sent, received = torch.zeros(7, device=device), torch.zeros(3, device=device)
        if rank == 0:
            dist.send(sent, 1)
        elif rank == 1:
            dist.recv(sent, 0)
        dist.broadcast(received, 0)
    shapes = {event.name: event.input_shapes for event in profile.events()}
    assert rank > 1 or shapes[("tokenyard:send", "tokenyard:recv")[rank]] == [[7]], shapes
    assert shapes["tokenyard:broadcast"] == [[3]]
    from torch.distributed import _functional_collectives as functional

    total = functional.all_reduce(torch.ones(5, device=device), "sum", dist.group.WORLD)
    assert (total == size).all()


def failure_of(call: Any) -> tuple[str, int | None]:
    """Calls until it fails; returns the error's type and the rank that it names."""
    import tokenyard
    import tokenyard.torch

    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            call()
            tokenyard.torch.check_device()
        except tokenyard.Error as error:
            return type(error).__name__, getattr(error, "rank", None)
    raise AssertionError("no call failed")


def operations(size: int, device: torch.device) -> dict[str, Any]:
    """Returns a call of every operation, with tensors of its own."""
    ones, many = torch.ones(1000, device=device), torch.ones(1000 * size, device=device)
    rank = dist.get_rank()

    def messages() -> None:
        after, before = (rank + 1) % size, (rank - 1) % size
        send = dist.P2POp(dist.isend, ones, after)
        receive = dist.P2POp(dist.irecv, many[:1000], before)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(ones),
        "reduce": lambda: dist.reduce(ones, 0),
        "broadcast": lambda: dist.broadcast(ones, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(many, ones),
        "gather": lambda: dist.gather(ones, list(many.split(1000)) if rank == 0 else None, 0),
        "scatter": lambda: dist.scatter(ones, list(many.split(1000)) if rank == 0 else None, 0),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(ones, many),
        "all_to_all": lambda: dist.all_to_all_single(many, many.clone()),
        "barrier": lambda: dist.all_reduce(torch.ones(1, device=device)),
        "messages": messages,
    }


def model_of(device: torch.device) -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 64), torch.nn.GELU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, 1)).to(device)


def batch_of(rank: int, step: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(16, 32, generator=generator).to(device)


def loss_of(model: Any, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def train(rank: int, size: int, device: torch.device, kind: str, steps: int = 12) -> list[float]:
    """Trains a small model by "ddp" or "fsdp2"; returns the losses of each step."""
    model: Any = model_of(device)
    if kind == "ddp":
        ids = [device.index] if device.type == "cuda" else None
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (size,))
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, batch_of(rank, step, device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def undisturbed(rank: int, size: int, steps: int = 30) -> list[float]:
    """Returns the losses of a rank in `train_through_a_death`, computed in one process."""
    model = model_of(torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for one in range(size):
            loss = loss_of(model, batch_of(one, step, torch.device("cpu")))
            (loss / size).backward()
            if one == rank:
                losses.append(loss.item())
        optimizer.step()
    return losses


def train_through_a_death(
    rank: int, device: torch.device, join: bool, say: Any, steps: int = 30
) -> list[float]:
    """Trains while rank 1 dies at step 10 and another process takes its place.

    Returns the losses of this rank's steps. All ranks have the same parameters, so the newcomer
    takes those of rank 0, and the step of which the others had no result is done again.
    """
    import tokenyard
    import tokenyard.torch

    job = tokenyard.torch.collectives()
    model = model_of(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses: dict[int, float] = {}

    def synchronize(step: int) -> int:
        """Takes parameters and step of rank 0."""
        number = torch.tensor([step], device=device)
        dist.broadcast(number, 0)
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        return int(number)

    step = synchronize(0) if join else 0
    while step < steps:
        if rank == 1 and step == 10 and not join:
            say("dies")
            time.sleep(60)
        optimizer.zero_grad()
        loss = loss_of(model, batch_of(rank, step, device))
        loss.backward()
        try:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
            tokenyard.torch.check_device()
        except (tokenyard.PeerLost, tokenyard.PeerTimeout, tokenyard.OperationAborted):
            job.replace(1)
            step = synchronize(step)
            continue
        optimizer.step()
        losses[step] = loss.item()
        step += 1
    return [losses.get(step, float("nan")) for step in range(steps)]
