"""Processes die while a replacement joins; the others agree and continue, with another one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import Rank, file_store, ranks_of, results
from test_trouble import (
    LOSSES,
    PATIENT_S,
    SECRET,
    Ranks,
    Tokens,
    shared_files,
)

import tokenyard


class Newcomer(Ranks):
    """A job that this process joins."""

    def __init__(self, rank: int, size: int, store: str) -> None:
        self.timeout = PATIENT_S
        self.job = tokenyard.connect(
            store, secret=SECRET, rank=rank, size=size, timeout=PATIENT_S, silence=2.0, join=True
        )


def until_all_are_here(ranks: Ranks, size: int, dies: bool = False) -> int:
    """Makes worlds until all ranks have exchanged in one; returns its epoch.

    Reduces only then: a reduction that some ranks do not begin stops the group on the others alone,
    whose `recover` waits for a call of all.
    """
    deadline = time.monotonic() + PATIENT_S
    failures: list[str] = []
    while True:
        assert time.monotonic() < deadline, failures
        try:
            ranks.recover()
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            # Another may have joined since the world was made.
            words = ranks.world.all_gather(b"here")
            members = [member for member, word in enumerate(words) if word]
            if len(members) == size:
                exchange(ranks.world, members)
                ranks.world.barrier("all are here")
                break
            ranks.job.recover(wait_for_replacements=True)
        except LOSSES as error:
            failures.append(f"{time.monotonic():.3f} {error}")
    ones = np.ones(1000)
    ranks.job.collectives().world().all_reduce(ones).wait()
    assert (ones == size).all()
    epoch = ranks.job.epoch()
    ranks.world.barrier("all have reduced")  # The next epoch begins when the first rank leaves.
    return epoch


def exchange(world: tokenyard.World, members: list[int]) -> None:
    tokens = Tokens(world, members)
    assert tokens.combine(tokens.dispatch())
    tokens.with_hooks()
    tokens.close()


def stay(say: Any, rank: int, size: int, store: str, falls: int) -> int:
    ranks = Ranks(rank, size, store, PATIENT_S)
    say("at work")
    while ranks.job.epoch() == 1:
        time.sleep(0.01)
    return until_all_are_here(ranks, size, dies=rank == falls)


def come(say: Any, rank: int, size: int, store: str, falls: bool) -> int:
    """A newcomer. One that `falls` dies once it has been admitted, before it has a world."""
    ranks = Newcomer(rank, size, store)
    if falls:
        os.kill(os.getpid(), signal.SIGKILL)
    return until_all_are_here(ranks, size)


@pytest.mark.parametrize(("newcomer_falls", "survivor_falls"), [(True, -1), (False, 1), (True, 0)])
def test_a_death_during_a_join(newcomer_falls: bool, survivor_falls: int, tmp_path: Path) -> None:
    size, lost = 4, 3
    before = shared_files()
    store = file_store(tmp_path)
    newcomers: list[Rank] = []
    with ranks_of(stay, size, store, survivor_falls) as ranks:
        try:
            for rank in ranks:
                rank.hears("at work")
            ranks[lost].kill()
            newcomers.append(Rank(come, lost, size, store, newcomer_falls))
            if newcomer_falls:
                newcomers[0].process.join(PATIENT_S)
                newcomers.append(Rank(come, lost, size, store, False))
            if survivor_falls >= 0:
                ranks[survivor_falls].process.join(PATIENT_S)
                newcomers.append(Rank(come, survivor_falls, size, store, False))
            staying = [rank for rank in ranks if rank.number not in (lost, survivor_falls)]
            staying += newcomers[1:] if newcomer_falls else newcomers
            epochs = results(staying)
        finally:
            for newcomer in newcomers:
                newcomer.end()
    assert len(set(epochs)) == 1
    assert shared_files() <= before
