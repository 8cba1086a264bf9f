"""The front: hands out requests, collects answers, kills a rank and starts its replacement."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from program import Failed
from rank_processes import SILENCE_S, end_at_once, messages, started

from .rank import STOP, TOKENS, Report, run_rank


@dataclass
class Run:
    """Results of a run."""

    answers: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    """Of each request: its answer, and how many results of experts that lacks."""
    seconds_of: dict[int, float] = field(default_factory=dict)
    """Of each step: the time that the slowest rank took."""
    rows: dict[int, dict[tuple[int, int], int]] = field(default_factory=dict)
    """Of each step: rows that each rank answered, by expert and rank."""
    killed_at: int | None = None
    """Step of the kill."""
    without_at: int | None = None
    """First step without the killed rank."""
    replaced_at: int | None = None
    """First step with the new process."""
    handed_again: int = 0
    """Requests of the killed rank, which others have answered."""


@dataclass
class Served:
    """A rank, as the front sees it."""

    process: SpawnProcess
    requests: set[int] = field(default_factory=set)
    stops: bool = False


class Front:
    """Runs one serving and its processes."""

    def __init__(self, folder: Path, ranks: int, steps: int, replicas: bool) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._job = dict(
            store=f"file:{folder}",
            secret=secrets.token_hex(16),
            size=ranks,
            silence=2.0,
            on_failure="exclude",
        )
        self._size, self._steps, self._replicas = ranks, steps, replicas
        self._ranks: dict[Connection, tuple[int, Served]] = {}
        self._leaving: list[SpawnProcess] = []
        self._next, self._again = 0, deque[int]()
        self._run = Run()

    def run(self, victim: int | None) -> Run:
        """Serves; kills `victim`, unless it is None, and replaces it. Raises Failed if a rank dies
        by itself, or answers differ."""
        run = self._run
        try:
            for rank in range(self._size):
                self._start(rank, join=False)
            self._serve_until(lambda: self._step >= self._steps)
            if victim is not None:
                self._kill(victim)
                self._serve_until(lambda: self._has_gone_on(run.without_at))
                self._start(victim, join=True)
                self._serve_until(lambda: self._has_gone_on(run.replaced_at))
            self._end()
        finally:
            end_at_once([*self._leaving, *(served.process for _, served in self._ranks.values())])
        return run

    @property
    def _step(self) -> int:
        return max(self._run.seconds_of, default=-1)

    def _has_gone_on(self, since: int | None) -> bool:
        return since is not None and self._step >= since + self._steps

    def _serve_until(self, holds: object) -> None:
        assert callable(holds)
        while not holds():
            for _, served in self._ranks.values():
                self._fill(served)
            self._listen()

    def _end(self) -> None:
        """Serves what is left, and lets the ranks leave."""
        while any(served.requests for _, served in self._ranks.values()) or self._again:
            for _, served in self._ranks.values():
                self._fill(served, only_again=True)
            self._listen()
        for _, served in self._ranks.values():
            served.stops = True
        for home in list(self._ranks):
            home.send(STOP)
        while self._ranks:
            self._listen()
        for process in self._leaving:
            process.join(SILENCE_S)

    def _fill(self, served: Served, only_again: bool = False) -> None:
        home = next(home for home, (_, other) in self._ranks.items() if other is served)
        while len(served.requests) < TOKENS:
            if self._again:
                number = self._again.popleft()
            elif only_again:
                return
            else:
                number, self._next = self._next, self._next + 1
            served.requests.add(number)
            home.send(number)

    def _start(self, rank: int, join: bool) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=run_rank,
            args=(os.getpid(), theirs, {**self._job, "rank": rank}, join, self._replicas),
        )
        with started(process):
            self._ranks[ours] = (rank, Served(process))
        theirs.close()

    def _listen(self) -> None:
        processes = {home: (rank, served.process) for home, (rank, served) in self._ranks.items()}
        for home, said in messages(processes):
            rank, served = self._ranks[home]
            if said is None:
                self._leaving.append(served.process)
                del self._ranks[home]
            else:
                self._note(rank, served, said)

    def _note(self, rank: int, served: Served, report: Report) -> None:
        run = self._run
        for number, answer, lost in report.answers:
            served.requests.discard(number)
            if number in run.answers:
                raise Failed(f"request {number} was answered twice")
            run.answers[number] = answer, lost
        if report.step < 0:
            return
        run.seconds_of[report.step] = max(run.seconds_of.get(report.step, 0.0), report.seconds)
        of_step = run.rows.setdefault(report.step, {})
        for expert, rows in report.rows.items():
            of_step[expert, rank] = rows
        is_whole = len(report.ranks) == self._size
        if run.killed_at is not None and run.without_at is None and not is_whole:
            run.without_at = report.step
        if run.without_at is not None and run.replaced_at is None and is_whole:
            run.replaced_at = report.step

    def _kill(self, victim: int) -> None:
        home, served = next(
            (home, served) for home, (rank, served) in self._ranks.items() if rank == victim
        )
        assert served.process.pid is not None
        os.kill(served.process.pid, signal.SIGKILL)
        served.process.join()
        # Its last words are in the pipe; the rest of its requests are for others.
        while home.poll():
            try:
                self._note(victim, served, home.recv())
            except (EOFError, OSError):
                break
        del self._ranks[home]
        self._again.extend(sorted(served.requests))
        self._run.handed_again = len(served.requests)
        self._run.killed_at = self._step
        self._killed_s = time.monotonic()
