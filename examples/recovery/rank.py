"""The program of one rank: its share of every step, and the recovery after a loss.

    "continue"   survivors make a world without the lost rank, and share its work
    "replace"    survivors let a new process take its place, and send it their state

The last message of a lost rank may be lost, too, so survivors may differ by a step: the furthest
rank sends its state to the others. A new process has no state at all.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

import tokenyard

from .work import SharedSteps, Work

ARENA_BYTES = 16 << 20
NO_STEP = -1
"""Step of a new process, which has no state yet."""


@dataclass(frozen=True)
class Blow:
    """A signal to one of the ranks."""

    signal: signal.Signals
    victim: int
    step: int
    """Step at which the rank receives it."""
    on_death: Literal["continue", "replace"]


@dataclass
class RankReport:
    """Results of a rank."""

    state: np.ndarray
    ranks_at_end: int
    told: str = ""
    """The error by which it learned of the loss."""
    noticed_s: float = 0.0
    """Seconds from the last successful step to the error."""
    recovered_s: float = 0.0
    """Seconds from the error to the next successful step."""
    lost: list[int] = field(default_factory=list)


def run_rank(world: tokenyard.World, work: Work, blow: Blow) -> RankReport:
    return Rank(world, work, blow).run()


class Rank:
    def __init__(self, world: tokenyard.World, work: Work, blow: Blow) -> None:
        self._world = world
        self._work = work
        self._blow = blow
        self._number = world.rank
        self._pids: list[int] = []
        """[ranks] of the world."""
        self._report = RankReport(work.state(), world.size)
        self._next = 0

    def run(self) -> RankReport:
        if self._world.is_replacement:
            self._next = NO_STEP
        self._share_state()
        steps = SharedSteps(self._world, self._work)
        ended_well = time.monotonic()
        while self._next < self._work.steps:
            self._maybe_fall()
            try:
                self._report.state = steps.step(self._report.state, self._next)
            except (tokenyard.PeerLost, tokenyard.PeerTimeout) as error:
                told_at = time.monotonic()
                self._report.noticed_s = told_at - ended_well
                self._report.told = f"{type(error).__name__} in {error.phase}"
                self._recover(error.rank)
                steps = SharedSteps(self._world, self._work)
                continue
            ended_well = time.monotonic()
            if self._report.told and not self._report.recovered_s:
                self._report.recovered_s = ended_well - told_at
            self._next += 1
            self._say_how_far()
        self._report.ranks_at_end = self._world.size
        self._world.barrier("the end")
        return self._report

    def _maybe_fall(self) -> None:
        blow = self._blow
        new = self._world.is_replacement
        if (self._number, self._next, new) == (blow.victim, blow.step, False):
            os.kill(os.getpid(), blow.signal)

    def _recover(self, suspect: int) -> None:
        """Continues without the lost rank, which need not be the one for which a wait failed.

        A rank that waits for the lost one keeps others waiting, too, and stays.
        """
        before = self._pids
        if self._blow.on_death == "replace":
            self._world = self._world.replace([suspect])
        else:
            job = self._world.job
            job.recover()
            self._world = job.world(arena_bytes=ARENA_BYTES, compact=True)
        self._share_state()
        lost = [rank for rank, pid in enumerate(before) if pid not in self._pids]
        self._report.lost += lost
        stopped = self._blow.signal == signal.SIGSTOP and self._blow.on_death == "continue"
        if stopped and self._world.rank == 0:
            for rank in lost:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(before[rank], signal.SIGCONT)  # So that it reports its absence.

    def _share_state(self) -> None:
        mine = pickle.dumps((self._next, self._report.state, os.getpid()))
        states = [pickle.loads(theirs) for theirs in self._world.all_gather(mine, "the state")]
        self._next, self._report.state, _ = max(states, key=lambda state: state[0])
        self._pids = [pid for _, _, pid in states]

    def _say_how_far(self) -> None:
        if self._world.rank == 0 and self._next % max(self._work.steps // 5, 1) == 0:
            print(f"  step {self._next} of {self._work.steps}", flush=True)
