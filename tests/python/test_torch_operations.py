"""torch.distributed's higher-level functions over backend tokenyard; every reduction of every type;
and errors of ranks that call different operations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from ranks import results_of
from torch_ranks import dist, in_job, needs_torch, torch

import tokenyard

pytestmark = needs_torch

RANKS = 3
WHOLE = ("uint8", "int8", "int16", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
SHORT = ("float16", "bfloat16")


def in_group(say: Any, rank: int, size: int, folder: Path, body: Callable[[int, int], Any]) -> Any:
    with in_job(rank, size, folder):
        result = body(rank, size)
        dist.barrier()
        return result


def run(body: Callable[[int, int], Any], folder: Path, size: int = RANKS) -> list[Any]:
    return results_of(in_group, size, folder, body)


def given(dtype: str, rank: int, length: int) -> torch.Tensor:
    """Returns small numbers: reductions over three ranks are exact in every type."""
    generator = torch.Generator().manual_seed(17 * rank + length)
    whole = torch.randint(0, 4, (length,), generator=generator)
    if dtype == "bool":
        return whole % 2 == 0
    return (whole + 1j * whole.flip(0) if dtype in COMPLEX else whole).to(getattr(torch, dtype))


def reductions() -> dict[str, tuple[Any, Callable[[Any, Any], Any], tuple[str, ...]]]:
    """By name: torch's constant, its function of two tensors, and its types."""
    return {
        "sum": (dist.ReduceOp.SUM, torch.add, WHOLE + FLOATS + COMPLEX),
        "average": (dist.ReduceOp.AVG, torch.add, FLOATS + COMPLEX),
        # Complex products, too, but torch lets none through.
        "product": (dist.ReduceOp.PRODUCT, torch.mul, WHOLE + FLOATS),
        "min": (dist.ReduceOp.MIN, torch.minimum, WHOLE + FLOATS),
        "max": (dist.ReduceOp.MAX, torch.maximum, WHOLE + FLOATS),
        "band": (dist.ReduceOp.BAND, torch.bitwise_and, ("bool", *WHOLE)),
        "bor": (dist.ReduceOp.BOR, torch.bitwise_or, ("bool", *WHOLE)),
        "bxor": (dist.ReduceOp.BXOR, torch.bitwise_xor, ("bool", *WHOLE)),
    }


def reduced(name: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """Short floats in float32, rounded once."""
    dtype = tensors[0].dtype
    wide = [t.float() if str(dtype).removeprefix("torch.") in SHORT else t for t in tensors]
    total = reduce(reductions()[name][1], wide)
    if name == "average":
        # Part by part: torch divides complex numbers by complex numbers only, and rounds twice.
        (torch.view_as_real(total) if dtype.is_complex else total).div_(len(tensors))
    return total.to(dtype)


def every_reduction(rank: int, size: int) -> None:
    for name, (op, _, dtypes) in reductions().items():
        for dtype in dtypes:
            for length in (0, 1, 7, 4099):
                everybodys = [given(dtype, other, length) for other in range(size)]
                wanted = reduced(name, everybodys)
                mine = everybodys[rank].clone()
                dist.all_reduce(mine, op)
                assert torch.equal(mine, wanted), ("all_reduce", name, dtype, length)
                mine = everybodys[rank].clone()
                dist.reduce(mine, 1, op)
                assert rank != 1 or torch.equal(mine, wanted), ("reduce", name, dtype, length)
                parts = [torch.cat([t] * size) for t in everybodys]
                out = torch.empty_like(wanted)
                dist.reduce_scatter_tensor(out, parts[rank], op)
                assert torch.equal(out, wanted), ("reduce_scatter", name, dtype, length)


def functional(rank: int, size: int) -> None:
    import torch.distributed._functional_collectives as functional_collectives

    # Autograd's names are looked up late: torch 2.11 has fewer of them than 2.15.
    call, group = functional_collectives, dist.group.WORLD
    assert (call.all_reduce(torch.ones(3), "sum", group) == size).all()
    assert (call.broadcast(torch.full((3,), rank), 1, group) == 1).all()
    assert call.all_gather_tensor(torch.tensor([rank]), 0, group).tolist() == [0, 1, 2]
    rows = torch.arange(2 * size).reshape(size, 2)
    seen = call.reduce_scatter_tensor(rows, "sum", 0, group)
    assert torch.equal(seen, size * rows[rank : rank + 1])
    both = call.all_reduce_coalesced([torch.ones(2), torch.ones(5)], "avg", group)
    assert all((tensor == 1).all() for tensor in both)
    gathered = call.all_gather_into_tensor_coalesced([torch.tensor([rank]), torch.ones(2)], group)
    assert [tensor.numel() for tensor in gathered] == [size, 2 * size]
    assert gathered[0].tolist() == [0, 1, 2]
    whole = torch.arange(size, dtype=torch.float32)
    scattered = call.reduce_scatter_tensor_coalesced([whole, 2 * whole], "sum", [0, 0], group)
    assert [tensor.item() for tensor in scattered] == [size * rank, 2 * size * rank]
    # Rank r sends s rows to rank s.
    splits = list(range(size))
    moved = call.all_to_all_single(torch.full((sum(splits),), rank), [rank] * size, splits, group)
    assert moved.tolist() == [source for source in range(size) for _ in range(rank)]
    around = call.permute_tensor(torch.tensor([rank]), [1, 2, 0], group)
    assert around.item() == (rank - 1) % size

    leaf = torch.full((size,), float(rank), requires_grad=True)
    call.all_to_all_single_autograd(leaf, None, None, group).pow(2).sum().backward()
    assert (leaf.grad == 2 * rank).all()


def objects(rank: int, size: int) -> None:
    everybodys: list[Any] | None = [None] * size if rank == 1 else None
    dist.gather_object({"rank": rank}, everybodys, dst=1)
    assert rank != 1 or everybodys == [{"rank": other} for other in range(size)]
    box: list[Any] = [None]
    dist.scatter_object_list(box, [f"for {r}" for r in range(size)] if rank == 2 else None, src=2)
    assert box == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list([("any", 1), None], dst=2)
    elif rank == 2:
        two: list[Any] = [None, None]
        assert dist.recv_object_list(two, src=0) == 0
        assert two == [("any", 1), None]


def coalesced(rank: int, size: int) -> None:
    outs = [torch.empty(2 * size) for _ in range(3)]
    with dist._coalescing_manager(async_ops=True) as together:
        for index, out in enumerate(outs):
            dist.all_gather_into_tensor(out, torch.full((2,), float(rank + index)))
    together.wait()
    for index, out in enumerate(outs):
        assert out.tolist() == [float(other + index) for other in range(size) for _ in range(2)]
    sums = [torch.empty(4) for _ in range(3)]
    with dist._coalescing_manager():
        for index, out in enumerate(sums):
            dist.reduce_scatter_tensor(out, torch.full((4 * size,), float(index)))
    assert [out[3].item() for out in sums] == [0, size, 2 * size]
    pairs = [[torch.empty(2), torch.empty(1)] for _ in range(size)]
    dist.all_gather_coalesced(pairs, [torch.full((2,), float(rank)), torch.ones(1)])
    assert [pair[0][1].item() for pair in pairs] == [0, 1, 2]


def threads_and_groups(rank: int, size: int) -> None:
    """One group per thread; the threads start in another order on each rank."""
    groups = [dist.new_group(list(range(size))) for _ in range(4)]
    wrong: list[BaseException] = []

    def work_in(number: int) -> None:
        try:
            for length in range(1, 100):
                mine = torch.full((length,), rank + number)
                dist.all_reduce(mine, group=groups[number])
                assert (mine == 3 * number + 3).all()
        except BaseException as error:
            wrong.append(error)

    order = [(number + rank) % len(groups) for number in range(len(groups))]
    threads = [threading.Thread(target=work_in, args=(number,)) for number in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def deadline_of_a_call(rank: int, size: int) -> str:
    """It ends the operation on all ranks; the next one is in order."""
    if rank == 1:
        dist.group.WORLD.recv([torch.empty(1)], 0, 3).wait()
        with pytest.raises(tokenyard.Error):
            dist.all_reduce(torch.ones(3))
        said = ""
    else:
        options = dist.AllreduceOptions()
        options.timeout = timedelta(milliseconds=300)
        with pytest.raises(TimeoutError) as caught:
            dist.group.WORLD.allreduce([torch.ones(3)], options).wait()
        said = str(caught.value)
        if rank == 0:
            dist.send(torch.ones(1), 1, tag=3)
    tokenyard.torch.collectives().shrink()
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == size
    return said


def eager_limits(rank: int, size: int) -> None:
    """Those of groups, whose ranks may differ."""
    import tokenyard.torch

    options = tokenyard.torch.Options
    for wrong in (-1, 8193, True, 1.5):
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            dist.new_group(pg_options=options(eager_limit=wrong))
        assert caught.value.argument == "eager_limit"
    groups = [
        (dist.new_group(pg_options=options(eager_limit=limit if rank == 0 else 8192)), limit)
        for limit in (0, 4)
    ]
    sends = []
    if rank == 0:
        sends = [dist.isend(torch.ones(1), 1, group=group) for group, _ in groups]
    dist.barrier()
    if rank == 0:
        assert [send.is_completed() for send in sends] == [False, True]
    dist.barrier()
    if rank == 1:
        for group, _ in groups:
            dist.recv(torch.empty(1), 0, group=group)
    for send in sends:
        send.wait()


@pytest.mark.parametrize(
    "body", [every_reduction, functional, objects, coalesced, threads_and_groups, eager_limits]
)
def test_results(tmp_path: Path, body: Callable[[int, int], Any]) -> None:
    run(body, tmp_path)


def test_a_call_has_a_deadline_of_its_own(tmp_path: Path) -> None:
    said = run(deadline_of_a_call, tmp_path)
    assert "rank 1" in said[0]
    assert "all_reduce" in said[0]


def blocked(rank: int, size: int) -> float:
    """Returns the CPU time of a rank that waits a second for another."""
    dist.barrier()
    begin = time.process_time()
    if rank == 1:
        time.sleep(1)
    dist.all_reduce(torch.ones(3))
    return time.process_time() - begin


def test_a_rank_that_waits_sleeps(tmp_path: Path) -> None:
    assert max(run(blocked, tmp_path)) < 0.5


def out_of_order(rank: int, size: int) -> str:
    dist.barrier()
    calls = [lambda: dist.all_reduce(torch.zeros(2, 3), dist.ReduceOp.MAX)] * 2
    calls += [lambda: dist.broadcast(torch.zeros(4, dtype=torch.int16), 1)]
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        calls[rank]()
    total = torch.ones(1)
    dist.all_reduce(total)  # The operation that no rank has done is skipped on all.
    assert total.item() == size
    return str(caught.value)


def test_calls_out_of_order_are_named(tmp_path: Path) -> None:
    """Ranks that differ in operation, type, shape or order of calls both raise."""
    for sentence in run(out_of_order, tmp_path):
        for word in (
            "operation 2 of",
            "all_reduce(max, float32[6])",
            "broadcast(int16[4], root 1)",
        ):
            assert word in sentence, sentence
        assert "on rank 2" in sentence
        assert "on rank 0" in sentence or "on rank 1" in sentence


def one_missing(rank: int, size: int) -> str:
    said = ""
    if rank != 1:
        with pytest.raises(TimeoutError) as caught:
            tokenyard.torch.monitored_barrier(timeout=timedelta(milliseconds=300))
        said = str(caught.value)
    if rank == 0:
        dist.send(torch.ones(1), 1)
    elif rank == 1:
        dist.recv(torch.ones(1), 0)
    tokenyard.torch.collectives().shrink()
    return said


def test_a_monitored_barrier_names_who_did_not_come(tmp_path: Path) -> None:
    said = run(one_missing, tmp_path)
    assert "rank 1" in said[0]
    assert "rank 1" in said[2]
