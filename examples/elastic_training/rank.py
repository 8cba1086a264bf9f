"""The program of one rank: trains, and when ranks are lost, waits for new ones and continues.

    survivors                             a new process
    a step's all_reduce is aborted
    recover: wait for replacements        join
    exchange their steps                  announces that it has none
    the furthest rank sends its state     receives it
    all repeat the step

An operation is done on every survivor or on none. So survivors are always at the same step with the
same state, and no step is lost or applied twice.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import tokenyard
from tokenyard.world import end_with_parent

from .letters import Letters
from .model import Model, Shape

NO_STEP = -1
"""Step of a new process, which has no state yet."""


def run_rank(
    supervisor: int,
    home: Connection,
    job_options: dict[str, Any],
    join: bool,
    letters: Letters,
    shape: Shape,
    steps: int,
) -> None:
    """Trains; sends (step, loss) to the supervisor after each step, and None at the end.

    The process ends with the supervisor, whose process id it is passed.
    """
    end_with_parent(supervisor)
    begin = tokenyard.Collectives.join if join else tokenyard.Collectives.connect
    with begin(**job_options) as job:
        trainer = Trainer(job, letters, shape)
        if join:
            trainer.step = NO_STEP
            trainer.share_state()
        while trainer.step < steps:
            loss = trainer.learn_one_step()
            home.send((trainer.step, loss))
        home.send(None)
        trainer.until_all_are_done()


class Trainer:
    """A rank's model, kept equal to those of all other ranks."""

    def __init__(self, job: tokenyard.Collectives, letters: Letters, shape: Shape) -> None:
        self.step = 0
        self._job = job
        self._world = job.world()
        self._letters = letters
        self._shape = shape
        self._model = Model(shape)

    def learn_one_step(self) -> float:
        """Returns the mean loss over all ranks, the same bits on each of them."""
        shape = self._shape
        while True:
            batch = self._letters.batch(self.step, self._job.rank, shape.rows, shape.context)
            loss = np.array([self._model.learn(*batch)])
            try:
                self._world.all_reduce([self._model.gradient, loss], "average").wait()
                break
            except tokenyard.OperationAborted:
                self.share_state()
        self._model.step()
        self.step += 1
        return float(loss[0])

    def share_state(self) -> None:
        """Recovers the job, then equalizes all states; starts over if more ranks are lost."""
        while True:
            try:
                self._job.recover(wait_for_replacements=True)
                steps = np.empty((self._job.size, 1), np.int64)
                self._world.all_gather(np.array([self.step]), steps).wait()
                furthest = int(steps.argmax())
                self._world.broadcast(self._model.state, root=furthest).wait()
                self.step = int(steps[furthest, 0])
                return
            except tokenyard.OperationAborted:
                continue

    def until_all_are_done(self) -> None:
        """Waits for all ranks: a rank lost in the last step needs the others' state."""
        while True:
            try:
                self._world.barrier().wait()
                return
            except tokenyard.OperationAborted:
                self.share_state()
