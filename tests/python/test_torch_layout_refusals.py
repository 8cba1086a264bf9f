"""Tensors that no copy can fix are rejected, and failed operations copy nothing back."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from ranks import ranks_of, results_of
from torch_ranks import dist, in_job, needs_torch, torch

import tokenyard

pytestmark = needs_torch


def in_group(say: Any, rank: int, size: int, folder: Path, body: Callable[[int, int], Any]) -> Any:
    with in_job(rank, size, folder):
        result = body(rank, size)
        dist.barrier()
        return result


def refused(argument: str, call: Callable[[], Any]) -> None:
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        call()
    assert caught.value.argument == argument, str(caught.value)


def refusals(rank: int, size: int) -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    plain = [torch.zeros(4) for _ in range(size)]
    one = torch.zeros(8)
    for overlapping in (torch.zeros(1).expand(4), one.as_strided((3, 3), (2, 1))):
        refused("tensor", lambda tensor=overlapping: dist.all_reduce(tensor))
        refused("tensor", lambda tensor=overlapping: dist.broadcast(tensor, (rank + 1) % size))
        refused("tensor", lambda tensor=overlapping: dist.recv(tensor, (rank + 1) % size))
        outs = [*plain[:-1], overlapping]
        refused(f"tensor_list[{size - 1}]", lambda outs=outs: dist.all_gather(outs, torch.ones(4)))
    refused("tensor_list[1]", lambda: dist.all_gather([plain[0]] * size, torch.ones(4)))
    shifted = [torch.zeros(9)[part : part + 4] for part in range(size)]
    dist.all_gather(shifted, torch.ones(4))  # Of memory of their own.
    shared = torch.zeros(9)
    shifted = [shared[part : part + 4] for part in range(size)]
    refused("output_tensor_list[1]", lambda: dist.all_to_all(shifted, plain))
    columns = torch.zeros(4, size)
    dist.all_gather(list(columns.unbind(1)), torch.full((4,), float(rank)))
    assert columns.tolist() == [[float(source) for source in range(size)]] * 4

    refused("tensor", lambda: dist.all_reduce(torch.zeros(3).to_sparse()))
    quantized = torch.quantize_per_tensor(torch.zeros(4), 0.5, 0, torch.qint8)
    refused("tensor", lambda: backend.send([quantized], (rank + 1) % size, 0))
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    refused("tensor", lambda: backend.send([nested], (rank + 1) % size, 0))
    with pytest.raises(TypeError, match="does not reduce"):
        dist.all_reduce(torch.zeros(2, 2, dtype=torch.float8_e4m3fn).t())


def test_what_a_copy_cannot_put_right_is_refused(tmp_path: Path) -> None:
    results_of(in_group, 2, tmp_path, refusals)


def killed(say: Any, rank: int, size: int, folder: Path) -> bool:
    """Operates on a transposed tensor until a rank is lost: the input is unchanged."""
    with in_job(rank, size, folder):
        say("operating")
        base = torch.empty(300, 200)
        for _ in range(1_000_000):
            base.fill_(rank)
            try:
                dist.all_reduce(base.t())
            except tokenyard.OperationAborted:
                return bool((base == rank).all())
    raise AssertionError("nobody was lost")


def test_an_aborted_operation_copies_nothing_back(tmp_path: Path) -> None:
    with ranks_of(killed, 3, tmp_path) as ranks:
        for rank in ranks:
            rank.hears("operating")
        time.sleep(0.3)
        ranks[0].kill()
        assert ranks[1].result()
        assert ranks[2].result()


def late(rank: int, size: int) -> None:
    """After a timeout nothing is copied back, however the caller learns of it."""
    out = torch.full((3, 2), 5.0)
    if rank == 0:
        options = dist.distributed_c10d.AllgatherOptions()
        options.timeout = timedelta(milliseconds=300)
        outs = [torch.empty(2, 3) for _ in range(size - 1)]
        work = dist.group.WORLD.allgather([[out.t(), *outs]], [torch.ones(2, 3)], options)
        future = work.get_future()
        with pytest.raises(tokenyard.PeerTimeout):
            work.wait()
        with pytest.raises((RuntimeError, TimeoutError)):
            future.wait()
        assert work.is_completed()
        assert not work.is_success()
        assert (out == 5).all()
        dist.group.WORLD.send([torch.ones(1)], 1, 3)
    else:
        dist.group.WORLD.recv([torch.empty(1)], 0, 3).wait()
    tokenyard.torch.collectives().shrink()


def test_an_operation_that_is_late_copies_nothing_back(tmp_path: Path) -> None:
    results_of(in_group, 2, tmp_path, late)
