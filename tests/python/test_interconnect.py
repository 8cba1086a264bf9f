"""Ranks that name UCX as their interconnect: collectives on arrays, and under torch.distributed.

Skipped where there is no UCX to build the plug-in with, or no torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import file_store, results_of
from torch_ranks import dist, in_job, needs_torch, torch

import _tokenyard
import tokenyard

NAME = "libtokenyard_ucx.so"
LENGTHS = (1, 1000, 300_007)


def plugin() -> str | None:
    """Returns the plug-in of this build, or one that the system's loader finds."""
    built = Path(_tokenyard.__file__).parents[2] / "src" / "ucx" / NAME
    if built.exists():
        return str(built)
    try:
        ctypes.CDLL(NAME)
    except OSError:
        return None
    return NAME


needs_ucx = pytest.mark.skipif(
    plugin() is None, reason=f"no {NAME}: it is built where UCX is (Debian: libucx-dev)"
)


def check(sum_of: Callable[[np.ndarray], None], rank: int, size: int) -> None:
    """Runs `sum_of`, which replaces its argument by the sum over all ranks."""
    for length in LENGTHS:
        array = np.arange(length, dtype=np.int64) + rank
        sum_of(array)
        wanted = size * np.arange(length, dtype=np.int64) + size * (size - 1) // 2
        np.testing.assert_array_equal(array, wanted)


def on_arrays(say: Any, rank: int, size: int, store: str) -> int:
    with tokenyard.Collectives.connect(
        store,
        secret="between us",
        rank=rank,
        size=size,
        address="127.0.0.1",
        host=f"host {rank}",  # Otherwise they would use shared memory.
        interconnect=plugin(),
    ) as job:
        world = job.world()
        check(lambda array: world.all_reduce(array).wait(), rank, size)
        assert NAME in Path("/proc/self/maps").read_text()
        world.barrier().wait()
        return job.counters().bytes_sent


@needs_ucx
def test_two_processes_reduce_over_ucx(tmp_path: Path) -> None:
    sent = results_of(on_arrays, 2, file_store(tmp_path))
    assert all(count >= 8 * LENGTHS[-1] for count in sent)


def under_torch(say: Any, rank: int, size: int, folder: Path) -> None:
    options = dict(address="127.0.0.1", host=f"host {rank}", interconnect=plugin())
    with in_job(rank, size, folder, **options):
        check(lambda array: dist.all_reduce(torch.from_numpy(array)), rank, size)
        gathered = [torch.empty(1000) for _ in range(size)]
        dist.all_gather(gathered, torch.full((1000,), float(rank)))
        assert all((part == source).all() for source, part in enumerate(gathered))
        dist.barrier()


def without(say: Any, rank: int, size: int, folder: Path) -> None:
    with (
        pytest.raises(tokenyard.Unsupported, match="nowhere"),
        in_job(rank, size, folder, interconnect="libtokenyard_nowhere.so"),
    ):
        pass


class TestUnderTorch:
    pytestmark = needs_torch

    @needs_ucx
    def test_two_processes_reduce_over_ucx(self, tmp_path: Path) -> None:
        results_of(under_torch, 2, tmp_path)

    def test_an_interconnect_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        results_of(without, 2, tmp_path)
