"""Backend tokenyard moves elements by their indices, whatever the layout of a tensor.

References are made from plain tensors."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks import results_of
from torch_ranks import dist, in_job, needs_torch, torch

pytestmark = needs_torch

SHAPE = (4, 3, 2, 5)
LAYOUTS = ("plain", "reversed", "channels_last", "gaps", "swapped")
NOTE = 77
"""Value in the gaps of a tensor."""


def laid_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    """Returns a tensor of these values with its elements in another order."""
    if layout == "reversed":
        place = torch.empty(values.shape[::-1], dtype=values.dtype).permute(3, 2, 1, 0)
    elif layout == "channels_last":
        place = torch.empty(values.shape, dtype=values.dtype)
        place = place.contiguous(memory_format=torch.channels_last)
    elif layout == "gaps":
        place = torch.full((*values.shape, 2), NOTE).to(values.dtype)[..., 1]
    elif layout == "swapped":
        first, second, *rest = values.shape
        place = torch.empty((second, first, *rest), dtype=values.dtype).transpose(0, 1)
    else:
        place = torch.empty(values.shape, dtype=values.dtype)
    return place.copy_(values)


def given(rank: int, index: int = 0, dtype: Any = None, shape: tuple[int, ...] = SHAPE) -> Any:
    """Returns small numbers of one rank, exact in every type."""
    generator = torch.Generator().manual_seed(101 * rank + index)
    return torch.randint(0, 16, shape, generator=generator).to(dtype or torch.float32)


class Case:
    """One rank's tensors in one turn: its layouts differ from its peers', and from turn to turn."""

    def __init__(self, rank: int, size: int, turn: int, dtype: Any) -> None:
        self.rank, self.size, self.turn, self.dtype = rank, size, turn, dtype
        self.outs: list[tuple[torch.Tensor, torch.Tensor, str]] = []
        self._used = 0

    def layout(self) -> str:
        self._used += 1
        return LAYOUTS[(self.turn + self.rank + 2 * self._used) % len(LAYOUTS)]

    def mine(self, index: int = 0) -> torch.Tensor:
        return laid_out(self.values(self.rank, index), self.layout())

    def values(self, rank: int, index: int = 0) -> torch.Tensor:
        return given(rank, index, self.dtype)

    def all(self, index: int = 0) -> list[torch.Tensor]:
        return [self.values(rank, index) for rank in range(self.size)]

    def out(self, wanted: torch.Tensor) -> torch.Tensor:
        """Returns a tensor that is to become `wanted`."""
        return self.becomes(laid_out(torch.full_like(wanted, 99), self.layout()), wanted)

    def becomes(self, tensor: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        self.outs.append((tensor, wanted, f"{tensor.shape} strides {tensor.stride()}"))
        return tensor

    def check(self, name: str) -> None:
        for tensor, wanted, how in self.outs:
            assert torch.equal(tensor.float(), wanted.float()), (name, self.turn, how)
            if tensor.stride()[-1] == 2 and tensor._base is not None:
                note = torch.tensor(NOTE).to(tensor.dtype).float()
                assert (tensor._base[..., 0].float() == note).all(), (name, "the gaps")


def total(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([tensor.float() for tensor in tensors]).sum(0).to(tensors[0].dtype)


def broadcast(case: Case) -> Any:
    root = case.turn % case.size
    wanted = case.values(root)
    tensor = case.mine() if case.rank == root else case.out(wanted)
    return dist.broadcast(case.becomes(tensor, wanted), root, async_op=True)


def all_reduce(case: Case) -> Any:
    return dist.all_reduce(case.becomes(case.mine(), total(case.all())), async_op=True)


def reduce(case: Case) -> Any:
    root = case.turn % case.size
    wanted = total(case.all()) if case.rank == root else case.values(case.rank)
    return dist.reduce(case.becomes(case.mine(), wanted), root, async_op=True)


def all_gather(case: Case) -> Any:
    return dist.all_gather([case.out(part) for part in case.all()], case.mine(), async_op=True)


def all_gather_into_tensor(case: Case) -> Any:
    out = case.out(torch.cat(case.all()))
    return dist.all_gather_into_tensor(out, case.mine(), async_op=True)


def gather(case: Case) -> Any:
    root = case.turn % case.size
    outs = [case.out(part) for part in case.all()] if case.rank == root else None
    return dist.gather(case.mine(), outs, root, async_op=True)


def scatter(case: Case) -> Any:
    root = case.turn % case.size
    parts = [laid_out(case.values(root, to), case.layout()) for to in range(case.size)]
    out = case.out(case.values(root, case.rank))
    return dist.scatter(out, parts if case.rank == root else None, root, async_op=True)


def reduce_scatter(case: Case) -> Any:
    out = case.out(total(case.all(case.rank)))
    return dist.reduce_scatter(out, [case.mine(to) for to in range(case.size)], async_op=True)


def reduce_scatter_tensor(case: Case) -> Any:
    whole = torch.cat([case.values(case.rank, to) for to in range(case.size)])
    out = case.out(total(case.all(case.rank)))
    return dist.reduce_scatter_tensor(out, laid_out(whole, case.layout()), async_op=True)


def all_to_all(case: Case) -> Any:
    outs = [case.out(part) for part in case.all(case.rank)]
    return dist.all_to_all(outs, [case.mine(to) for to in range(case.size)], async_op=True)


def all_to_all_single(case: Case) -> Any:
    whole = torch.cat([case.values(case.rank, to) for to in range(case.size)])
    out = case.out(torch.cat(case.all(case.rank)))
    return dist.all_to_all_single(out, laid_out(whole, case.layout()), async_op=True)


def all_to_all_uneven(case: Case) -> Any:
    """Rank r sends r + s rows to rank s."""
    splits = [case.rank + to for to in range(case.size)]
    parts = [[case.values(r, to)[: r + to] for to in range(case.size)] for r in range(case.size)]
    out = case.out(torch.cat([part[case.rank] for part in parts]))
    whole = laid_out(torch.cat(parts[case.rank]), case.layout())
    return dist.all_to_all_single(out, whole, splits, splits, async_op=True)


def all_gather_uneven(case: Case) -> Any:
    outs = [case.out(part[: rank + 1]) for rank, part in enumerate(case.all())]
    mine = laid_out(case.values(case.rank)[: case.rank + 1], case.layout())
    return dist.all_gather(outs, mine, async_op=True)


OPERATIONS: tuple[Callable[[Case], Any], ...] = (
    broadcast,
    all_reduce,
    reduce,
    all_gather,
    all_gather_into_tensor,
    gather,
    scatter,
    reduce_scatter,
    reduce_scatter_tensor,
    all_to_all,
    all_to_all_single,
    all_to_all_uneven,
    all_gather_uneven,
)
MOVES = (broadcast, all_gather, gather, scatter, all_to_all, all_to_all_single)


def polled(work: Any) -> None:
    deadline = time.monotonic() + 60
    while not work.is_completed():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert work.is_success()


WAYS: tuple[Callable[[Any], Any], ...] = (
    lambda work: work.wait(),
    polled,
    lambda work: work.get_future().wait(),
)
"""Ways to learn that an operation is done, after which outputs must be right."""


def every_operation(rank: int, size: int) -> None:
    for turn in range(len(LAYOUTS)):
        for operation in OPERATIONS:
            case = Case(rank, size, turn, torch.bfloat16 if turn == 1 else torch.float32)
            WAYS[turn % len(WAYS)](operation(case))
            case.check(operation.__name__)
    for dtype in (torch.float8_e4m3fn, torch.int64, torch.bool):
        for operation in MOVES:
            case = Case(rank, size, 1, dtype)
            operation(case).wait()
            case.check(f"{operation.__name__} of {dtype}")


def coalesced(rank: int, size: int) -> None:
    together: tuple[Callable[[Case], Any], ...]
    for together in ((all_reduce,), (all_gather_into_tensor,), (reduce_scatter_tensor,)):
        for turn, way in enumerate(WAYS[:2]):
            cases = [Case(rank, size, turn + index, torch.float32) for index in range(3)]
            with dist._coalescing_manager(async_ops=True) as manager:
                for case in cases:
                    together[0](case)
            for work in manager.works:
                way(work)
            for case in cases:
                case.check(f"coalesced {together[0].__name__}")
    case = Case(rank, size, 0, torch.float32)
    outs = [[case.out(case.values(source, index)) for index in (0, 1)] for source in range(size)]
    dist.all_gather_coalesced(outs, [case.mine(0), case.mine(1)])
    case.check("all_gather_coalesced")
    case = Case(rank, size, 1, torch.float32)
    tensors = [case.becomes(case.mine(index), total(case.all(index))) for index in (0, 1, 2)]
    dist.all_reduce_coalesced(tensors)
    case.check("all_reduce_coalesced")


def messages(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    for turn in range(len(LAYOUTS)):
        case = Case(rank, size, turn, torch.float32)
        batch = [
            dist.P2POp(dist.isend, case.mine(), right),
            dist.P2POp(dist.irecv, case.out(case.values(left)), left),
        ]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        case.check("batch_isend_irecv")
        case = Case(rank, size, turn, torch.float32)
        if rank == 0:
            for _ in range(1, size):
                got = laid_out(torch.zeros(SHAPE), case.layout())
                source = dist.recv(got)
                assert torch.equal(got, case.values(source))
        else:
            dist.send(case.mine(), 0)


def over_themselves(rank: int, size: int) -> None:
    """Outputs in the memory of inputs: the operation reads the original values."""
    for rows in (3, 200_000):
        whole = given(rank, shape=(size, rows))
        wanted = torch.stack([given(source, shape=(size, rows))[rank] for source in range(size)])
        dist.all_to_all_single(whole, whole)
        assert torch.equal(whole, wanted), ("all_to_all_single", rows)
        whole = given(rank, shape=(size, rows))
        dist.all_to_all(list(whole), list(whole))
        assert torch.equal(whole, wanted), ("all_to_all", rows)
        whole = given(rank, shape=(size, rows))
        kept = whole.clone()
        dist.scatter(whole[0], list(whole) if rank == 1 else None, src=1)
        assert torch.equal(whole[0], given(1, shape=(size, rows))[rank]), ("scatter", rows)
        assert torch.equal(whole[1:], kept[1:])
        whole = given(rank, shape=(size, rows))
        dist.gather(whole[1], list(whole) if rank == 0 else None, dst=0)
        wanted = torch.stack([given(source, shape=(size, rows))[1] for source in range(size)])
        assert torch.equal(whole, wanted if rank == 0 else kept), ("gather", rows)


def whole_group_into_one(rank: int, size: int) -> None:
    if hasattr(dist, "gather_single"):
        case = Case(rank, size, 1, torch.float32)
        out = case.out(torch.cat(case.all())) if rank == 0 else None
        dist.gather_single(case.mine(), out, dst=0)
        case.check("gather_single")


def views(rank: int, size: int) -> None:
    """Inputs may be expanded; conjugates and negatives are read and written by value."""
    one = torch.full((1,), float(rank))
    outs = [torch.zeros(3) for _ in range(size)]
    dist.all_gather(outs, one.expand(3))
    assert [out.tolist() for out in outs] == [[float(source)] * 3 for source in range(size)]

    number = torch.complex(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])) * (rank + 1)
    # torch's own functions resolve such a tensor, or refuse it, before a backend sees it.
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend.allreduce([number.conj()]).wait()  # The sum of the conjugates; stored conjugated.
    factor = size * (size + 1) / 2
    assert number.tolist() == [(1 + 3j) * factor, (2 + 4j) * factor]
    negative = number.conj().imag
    assert negative.is_neg()
    backend.broadcast([negative], dist.distributed_c10d.BroadcastOptions()).wait()
    assert number.imag.tolist() == [3 * factor, 4 * factor]

    leaf = torch.ones(3, 2, requires_grad=True)
    version = leaf._version
    with torch.no_grad():
        dist.all_reduce(leaf.t())
    assert (leaf == size).all()
    assert leaf._version == version  # As for a tensor whose own memory is written.
    with torch.inference_mode():
        inferred = torch.ones(3, 2).t()
    dist.all_reduce(inferred)
    assert (inferred == size).all()


def nobody_waits(rank: int, size: int) -> None:
    """Outputs are written even if no caller waits, or the caller has dropped them."""
    wide = torch.full((size, 500, 300), -1.0)
    dist.all_gather([part.t() for part in wide], given(rank, shape=(300, 500)), async_op=True)
    deadline = time.monotonic() + 60
    wanted = torch.stack([given(source, shape=(300, 500)).t() for source in range(size)])
    while not torch.equal(wide, wanted):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def in_group(say: Any, rank: int, size: int, folder: Path, body: Callable[[int, int], Any]) -> Any:
    with in_job(rank, size, folder):
        result = body(rank, size)
        dist.barrier()
        return result


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "body",
    [
        every_operation,
        coalesced,
        messages,
        over_themselves,
        whole_group_into_one,
        views,
        nobody_waits,
    ],
)
def test_layouts(tmp_path: Path, size: int, body: Callable[[int, int], Any]) -> None:
    results_of(in_group, size, tmp_path, body)
