"""The program of one rank: decode steps, without an end of its own.

    every step     the ranks agree by a small all_reduce whether to stop, and whether a new process
                   waits; an operation of this job goes on without lost ranks by itself
    dispatch       each token to two experts; a rank that is killed is masked within the step
    combine        a token that lacks a result is sent again in the next step, where a replica
                   answers, unless its expert has no place any more

After a loss, and when a new process is let in, the same LowLatency object goes on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import ml_dtypes
import numpy as np

import tokenyard
from tokenyard.world import end_with_parent

from .requests import HIDDEN, TOPK, Request, result_of

TOKENS = 16
"""Requests that a rank serves at a time."""
EXPERTS_PER_RANK = 2
STOP = "stop"
NO_STEP = -1
"""Step of a new process, which has not met the others yet."""


@dataclass
class Report:
    """One decode step of a rank."""

    step: int
    seconds: float
    ranks: list[int]
    """Members of the job."""
    rows: dict[int, int] = field(default_factory=dict)
    """Rows for which each expert answered here."""
    answers: list[tuple[int, bytes, int]] = field(default_factory=list)
    """Number of each answered request, its answer, and how many results that lacks."""


def run_rank(
    supervisor: int, front: Connection, job_options: dict[str, Any], join: bool, replicas: bool
) -> None:
    """Serves until the front says STOP; sends it a Report per step, and None at the end.

    The process ends with the supervisor, whose process id it is passed.
    """
    end_with_parent(supervisor)
    with tokenyard.connect(**job_options, join=join) as job:
        Server(job, front, replicas, join).serve()
        front.send(None)


class Server:
    """A rank's requests and experts."""

    def __init__(self, job: tokenyard.Job, front: Connection, replicas: bool, is_new: bool) -> None:
        self._job = job
        self._group = job.collectives().world()
        self._front = front
        self._world = job.world(arena_bytes=32 << 20)
        size = self._world.size
        self._experts = EXPERTS_PER_RANK * size
        self._places = EXPERTS_PER_RANK * (2 if replicas else 1)
        self._exchange = tokenyard.LowLatency(
            self._world,
            experts=self._experts,
            hidden=HIDDEN,
            topk=TOPK,
            tokens_max=TOKENS,
            places_per_rank=self._places,
        )
        self._held: list[int] = self._exchange.held_experts
        self._exchange.on_experts_changed(self._load)
        if not is_new and replicas:
            # A rank holds its experts, and those of the rank before. A new process is told the map.
            own = np.arange(self._experts).reshape(size, EXPERTS_PER_RANK)
            everybody = np.concatenate([own, np.roll(own, 1, axis=0)], axis=1)
            self._exchange.set_expert_map(everybody.ravel().tolist())
        self._requests: list[Request] = []
        self._step = NO_STEP if is_new else 0
        self._lost: list[int] = []
        self._is_new = is_new
        self._stops = False

    def serve(self) -> None:
        while self._is_new or self._agree():
            self._is_new = False
            self._take_requests()
            begin = time.monotonic()
            rows, answers = self._decode()
            seconds = time.monotonic() - begin
            ranks = self._job.active_ranks()
            self._front.send(Report(self._step, seconds, ranks, rows, answers))
        self._exchange.close()

    def _load(self, held: list[int]) -> None:
        """Loads the weights of experts; these have none."""
        self._held = held

    def _agree(self) -> bool:
        """Agrees on the next step, also on who is in; returns whether there is one."""
        state = np.array([self._stops, len(self._job.waiting()), self._step], np.int64)
        work = self._group.all_reduce(state, "max")
        work.wait()
        stops, waiting, step = state.tolist()
        self._step = step + 1
        lost = list(work.failed_ranks())
        if any(rank not in self._lost for rank in lost):
            self._job.recover()  # From the next dispatch on, without the lost rank.
        elif waiting and lost:
            self._job.replace(lost[0])  # From the next dispatch on, with the new process.
        self._lost = lost
        return not stops

    def _take_requests(self) -> None:
        while self._front.poll():
            said = self._front.recv()
            if said == STOP:
                self._stops = True
            else:
                self._requests.append(Request(said))

    def _decode(self) -> tuple[dict[int, int], list[tuple[int, bytes, int]]]:
        serving = self._requests[:TOKENS]
        tokens = len(serving)
        x = np.zeros((tokens, HIDDEN), ml_dtypes.bfloat16)
        idx = np.zeros((tokens, TOPK), np.int64)
        for place, request in enumerate(serving):
            x[place], idx[place] = request.token, request.choices(self._experts)
        got = self._exchange.dispatch(x, idx, rows="bf16")
        y = np.zeros(got.x.shape, ml_dtypes.bfloat16)
        rows: dict[int, int] = {}
        for place, (expert, count) in enumerate(zip(self._held, got.counts.tolist(), strict=True)):
            if count:
                y[place, :count] = result_of(expert, got.x[place, :count])
                rows[expert] = rows.get(expert, 0) + count
        home = self._exchange.combine(y, got, np.ones((tokens, TOPK), np.float32))
        self._exchange.wait()
        return rows, self._answers(serving, idx, home.x, home.lost)

    def _answers(
        self, serving: list[Request], idx: np.ndarray, results: np.ndarray, lost: np.ndarray
    ) -> list[tuple[int, bytes, int]]:
        without = set(self._exchange.lost_experts)
        answers = []
        for place, request in enumerate(serving):
            lacks = int(lost[place])
            if lacks > sum(expert in without for expert in idx[place].tolist()):
                continue  # A rank is gone, but others have its experts: again in the next step.
            if request.advance(results[place], lacks):
                answers.append((request.number, request.token.tobytes(), request.lost))
                self._requests.remove(request)
        return answers
