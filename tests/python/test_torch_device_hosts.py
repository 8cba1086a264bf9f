"""Backend tokenyard on CUDA tensors of several hosts, tested without a GPU: CPU tensors take their
way, and processes count as being on two hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ranks import results_of
from torch_ranks import dist, needs_torch, torch

if torch is not None:
    import device_programs as programs

    CPU = torch.device("cpu")

pytestmark = needs_torch


def between_hosts(say: Any, rank: int, size: int, folder: Path) -> None:
    os.environ["TOKENYARD_HOST_NAME"] = f"host{rank * 2 // size}"
    with programs.in_group(rank, size, folder, CPU):
        programs.check_reductions(rank, size, CPU)
        x = torch.full((5000,), float(rank))
        out = torch.empty(size, 5000)
        dist.all_gather_into_tensor(out, x)
        assert all((out[one] == one).all() for one in range(size))
        dist.broadcast(x, 1)
        assert (x == 1).all()
        parts = torch.arange(size, dtype=torch.float32) + 10 * rank
        swapped = torch.empty_like(parts)
        dist.all_to_all_single(swapped, parts)
        assert swapped.tolist() == [10 * one + rank for one in range(size)]
        # Ranks 0 and 1 are on one host, rank 2 on another.
        for receiver in (1, 2):
            told = torch.full((7,), float(rank))
            if rank == 0:
                dist.send(told, receiver)
            elif rank == receiver:
                dist.recv(told, 0)
                assert (told == 0).all()
        dist.barrier()


def test_a_group_spans_hosts(tmp_path: Path) -> None:
    results_of(between_hosts, 3, tmp_path)
