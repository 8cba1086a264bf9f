"""Results of lost ranks under on_failure="exclude"."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import file_store, ranks_of, results
from test_collectives import connect

import tokenyard

LOST, LEFT = 1, [0, 2, 3]


def until_lost(world: tokenyard.Group) -> None:
    """All ranks learn of the loss in the same operation."""
    deadline = time.monotonic() + 60
    lost: list[int] = []
    while lost != [LOST]:
        assert time.monotonic() < deadline
        work = world.barrier()
        work.wait()
        lost = work.failed_ranks()
    assert world.active_ranks() == LEFT


def kept(say: Any, rank: int, size: int, store: str) -> None:
    with connect(rank, size, store, silence=3, on_failure="exclude") as job:
        world = job.world()
        mine = np.full(3, rank + 1)
        out = np.full((size, 3), -1)
        work = world.all_gather(mine, out)
        work.wait()
        assert work.failed_ranks() == []
        assert (out[:, 0] == [1, 2, 3, 4]).all()
        say("together")
        until_lost(world)

        expected = [1, 0, 3, 4]
        for algorithm in ("direct", "ring"):
            out = np.full((size, 3), -1)
            work = world.all_gather(mine, out, algorithm=algorithm)
            work.wait()
            assert work.failed_ranks() == [LOST]
            assert (out == np.array(expected)[:, None]).all()

        out = np.full((size, 3), -1)
        work = world.gather(mine, out if rank == 2 else None, root=2)
        work.wait()
        assert work.failed_ranks() == [LOST]
        assert (out == (np.array(expected)[:, None] if rank == 2 else -1)).all()

        out = np.full((size, 3), -1)
        parts = np.tile(mine, (size, 1))
        work = world.all_to_all(parts, out)
        work.wait()
        assert work.failed_ranks() == [LOST]
        assert (out == np.array(expected)[:, None]).all()

        out = np.full(3, -1)
        work = world.reduce_scatter(parts, out)
        work.wait()
        assert work.failed_ranks() == [LOST]
        assert (out == 8).all()

        with pytest.raises(tokenyard.OperationAborted) as lost:
            world.broadcast(np.ones(3), root=LOST).wait()
        assert lost.value.lost == [LOST]
        with pytest.raises(tokenyard.OperationAborted) as lost:
            world.scatter(np.ones(3), root=LOST).wait()
        assert lost.value.lost == [LOST]
        with pytest.raises(tokenyard.InvalidArgument, match=r"lost ranks \(1\) are kept"):
            world.all_gather(mine, np.ones((3, 3), mine.dtype))
        world.barrier().wait()


def compact(say: Any, rank: int, size: int, store: str) -> None:
    options = dict(silence=3, on_failure="exclude", places="compact")
    with connect(rank, size, store, **options) as job:
        world = job.world()
        mine = np.full(3, rank + 1)
        say("together")
        until_lost(world)

        left = [1, 3, 4]
        for algorithm in ("direct", "ring"):
            out = np.full((3, 3), -1)
            work = world.all_gather(mine, out, algorithm=algorithm)
            work.wait()
            assert work.failed_ranks() == [LOST]
            assert (out == np.array(left)[:, None]).all()
            parts = np.arange(9).reshape(3, 3) * (rank + 1)
            out = np.full(3, -1)
            world.reduce_scatter(parts, out, algorithm=algorithm).wait()
            assert (out == parts[LEFT.index(rank)] // (rank + 1) * 8).all()

        out = np.full((3, 3), -1)
        world.gather(mine, out if rank == 3 else None, root=3).wait()
        assert (out == (np.array(left)[:, None] if rank == 3 else -1)).all()
        out = np.full(3, -1)
        world.scatter(out, np.arange(9).reshape(3, 3) if rank == 0 else None, root=0).wait()
        assert (out == np.arange(3) + 3 * LEFT.index(rank)).all()
        out = np.full((3, 3), -1)
        world.all_to_all(np.tile(mine, (3, 1)), out).wait()
        assert (out == np.array(left)[:, None]).all()

        # A rank that does not know of the loss passes other lists: all raise once.
        places = size if rank == 2 else 3
        with pytest.raises(tokenyard.InvalidArgument) as refused:
            world.all_gather(mine, np.ones((places, 3), mine.dtype)).wait()
        assert refused.value.expected.startswith("3 parts, one for each of ranks 0, 2, 3")
        assert "lost ranks: 1" in refused.value.expected
        assert "on rank 2 with 4 parts" in refused.value.seen
        # All raise, too, if only one rank's own part does not fit.
        out = np.ones(3 if rank == 0 else 5, mine.dtype)
        with pytest.raises(tokenyard.InvalidArgument):
            world.reduce_scatter(np.ones((3, 3), mine.dtype), out).wait()
        world.barrier().wait()


@pytest.mark.parametrize("program", [kept, compact])
def test_places_of_a_lost_rank(tmp_path: Path, program: Callable[..., None]) -> None:
    with ranks_of(program, 4, file_store(tmp_path)) as ranks:
        for rank in ranks:
            rank.hears("together")
        ranks[LOST].kill()
        results(ranks[rank] for rank in LEFT)


def test_places_have_two_names(tmp_path: Path) -> None:
    with pytest.raises(tokenyard.InvalidArgument, match="'kept' or 'compact'"):
        connect(0, 1, file_store(tmp_path), places="counted")
