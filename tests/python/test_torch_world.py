"""A World and a Job of a torch process group of backend tokenyard: they use the group's own job."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from ranks import ranks_of, results
from torch_ranks import in_job, needs_torch, total

import tokenyard

pytestmark = needs_torch


def use_one_job(say: Any, rank: int, size: int, folder: Path) -> tuple[int, list[int]]:
    from tokenyard.torch import collectives

    with in_job(rank, size, folder):
        assert total(rank) == sum(range(size))
        world = tokenyard.World.from_torch(arena_bytes=1 << 20, timeout=30)
        assert world is not None
        job = tokenyard.from_torch()
        assert job is not None
        assert (world.rank, world.size, job.rank) == (rank, size, rank)
        assert world.job.epoch() == job.epoch() == collectives().epoch()
        gathered = world.all_gather(bytes([rank]))
        threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
        again = tokenyard.World.from_torch(arena_bytes=1 << 20, timeout=30)
        assert len(os.listdir("/proc/self/task")) <= threads + 1  # noqa: PTH208
        assert again is not None
        again.barrier()
        epoch = job.epoch()  # Behind the next barrier ranks leave, which begins another one.
        world.barrier()
        return epoch, [each[0] for each in gathered]


def test_world_stands_on_the_groups_job(tmp_path: Path) -> None:
    with ranks_of(use_one_job, 3, tmp_path) as ranks:
        assert results(ranks) == [(1, [0, 1, 2])] * 3


def lose_one(say: Any, rank: int, size: int, folder: Path) -> list[int]:
    with in_job(rank, size, folder):
        world = tokenyard.World.from_torch(arena_bytes=1 << 20, timeout=30)
        assert world is not None
        assert total(rank) == sum(range(size))
        world.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(tokenyard.PeerLost) as tokens:
            world.barrier()
        with pytest.raises(tokenyard.OperationAborted) as gradients:
            total(rank)
        assert [tokens.value.rank] == gradients.value.lost == [1]
        survivors = world.job.recover()
        assert total(rank) == sum(survivors)
        world = tokenyard.World.from_torch(arena_bytes=1 << 20, timeout=30)
        assert world is not None
        world.barrier()
        return survivors


def test_death_is_learned_once(tmp_path: Path) -> None:
    with ranks_of(lose_one, 3, tmp_path) as ranks:
        assert results([ranks[0], ranks[2]]) == [[0, 2], [0, 2]]
