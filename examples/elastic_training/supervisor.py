"""Starts the ranks, kills some of them, and starts replacements."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from program import Failed
from rank_processes import SILENCE_S, end_at_once, messages, started

from .letters import Letters
from .model import Shape
from .rank import run_rank


@dataclass(frozen=True)
class Kill:
    """Ranks to kill as soon as one of them has finished a step."""

    step: int
    ranks: tuple[int, ...]


@dataclass
class Run:
    """Results of a training."""

    losses: list[float] = field(default_factory=list)
    """[steps] loss of each step, the same on all ranks."""
    kills: list[tuple[int, tuple[int, ...], float]] = field(default_factory=list)
    """Step, ranks, and seconds until all ranks, new ones included, had done another step."""
    seconds: float = 0.0


class Supervisor:
    """Runs one training and its processes."""

    def __init__(
        self, folder: Path, ranks: int, steps: int, letters: Letters, shape: Shape
    ) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._job = dict(
            store=f"file:{folder}", secret=secrets.token_hex(16), size=ranks, silence=2.0
        )
        self._work = (letters, shape, steps)
        self._ranks: dict[Connection, tuple[int, SpawnProcess]] = {}
        self._step_of = dict.fromkeys(range(ranks), 0)
        self._leaving: list[SpawnProcess] = []
        self._recovering: list[tuple[Kill, float]] = []
        self._run = Run()

    def run(self, kills: list[Kill]) -> Run:
        """Trains to the end. Raises Failed if a rank dies by itself or losses differ."""
        begin = time.monotonic()
        ahead = sorted(kills, key=lambda kill: kill.step)
        try:
            for rank in self._step_of:
                self._start(rank, join=False)
            while self._ranks:
                self._listen()
                if ahead and all(self._step_of[rank] >= ahead[0].step for rank in ahead[0].ranks):
                    self._replace(ahead.pop(0))
            for process in self._leaving:
                process.join(SILENCE_S)
        finally:
            end_at_once([*self._leaving, *(process for _, process in self._ranks.values())])
        self._run.seconds = time.monotonic() - begin
        return self._run

    def _start(self, rank: int, join: bool) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=run_rank,
            args=(os.getpid(), theirs, {**self._job, "rank": rank}, join, *self._work),
        )
        with started(process):
            self._ranks[ours] = (rank, process)
        theirs.close()

    def _listen(self) -> None:
        for home, said in messages(self._ranks):
            rank, process = self._ranks[home]
            if said is None:
                self._leaving.append(process)
                del self._ranks[home]
            else:
                self._note(rank, *said)

    def _note(self, rank: int, step: int, loss: float) -> None:
        self._step_of[rank] = step
        if step > len(self._run.losses):
            self._run.losses.append(loss)
        if self._run.losses[step - 1] != loss:
            raise Failed(f"step {step}: rank {rank} has another loss than the others")
        now = time.monotonic()
        for kill, begin in list(self._recovering):
            if min(self._step_of.values()) > kill.step:
                self._recovering.remove((kill, begin))
                self._run.kills.append((kill.step, kill.ranks, now - begin))

    def _replace(self, kill: Kill) -> None:
        for home, (rank, process) in list(self._ranks.items()):
            if rank in kill.ranks:
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
                process.join()
                del self._ranks[home]
                self._step_of[rank] = 0
        self._recovering.append((kill, time.monotonic()))
        for rank in kill.ranks:
            self._start(rank, join=True)
