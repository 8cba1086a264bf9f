"""Ranks of a torch.distributed job over backend tokenyard, as real processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from ranks import context

import tokenyard

try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError:
    torch = dist = None  # Skipped test by test, so that each is counted.

# Imported once, not once a rank and test.
context.set_forkserver_preload(["numpy", "ml_dtypes", "tokenyard", "torch"])
needs_torch = [
    pytest.mark.skipif(torch is None, reason="needs torch: pip install torch"),
    pytest.mark.usefixtures("torch_backend"),
]


@contextlib.contextmanager
def in_job(
    rank: int, size: int, folder: Path, *, reconfigurable: bool = False, **options: Any
) -> Iterator[None]:
    """Joins the default group; the store is a file, so that any rank may die."""
    import tokenyard.torch

    torch.set_num_threads(1)
    more: dict[str, Any] = {"enable_reconfigure": True} if reconfigurable else {}
    dist.init_process_group(
        "tokenyard",
        store=dist.FileStore(str(folder / "store"), -1),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
        pg_options=tokenyard.torch.Options(silence=3, **options),
        **more,
    )
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def total(mine: int, group: Any = None) -> int:
    """Returns the sum over the ranks of a group, by all_reduce."""
    tensor = torch.full((1000,), mine)
    dist.all_reduce(tensor, group=group)
    assert (tensor == tensor[0]).all()
    return int(tensor[0])


def until_aborted(mine: int) -> tokenyard.OperationAborted:
    """Operates until a rank is lost; the input of the aborted operation is unchanged."""
    for _ in range(1_000_000):
        tensor = torch.full((1000,), mine)
        try:
            dist.all_reduce(tensor)
        except tokenyard.OperationAborted as error:
            assert (tensor == mine).all()
            return error
    raise AssertionError("nobody was lost")
