"""Outcomes of a launch's ranks: results by rank, or the first failure."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import ProcessDied

LISTEN_S = 0.2
"""Seconds per wait of a launch. A Ctrl-C just before a wait does not interrupt it, and is noticed
when the wait ends."""


class Outcomes:
    """Collects outcomes in the order in which ranks end; `failure` is the earliest."""

    def __init__(self, ranks: int) -> None:
        self._results: list[Any] = [None] * ranks
        self._running = set(range(ranks))
        self._dead: dict[int, BaseException] = {}
        self.failure: BaseException | None = None

    @property
    def running(self) -> set[int]:
        """Ranks that have not ended."""
        return self._running

    def returned(self, rank: int, result: Any) -> None:
        self._running.discard(rank)
        self._results[rank] = result

    def raised(self, rank: int, error: BaseException) -> None:
        """Records a failure; drops later ones, which are mostly consequences of the first."""
        self._running.discard(rank)
        if self.failure is None:
            if not isinstance(error, ProcessDied):  # Which names the rank, and was raised by none.
                error.add_note(f"raised by rank {rank} of {len(self._results)}")
            for dead, why in sorted(self._dead.items()):
                error.add_note(f"rank {dead} had died: {why}")
            self.failure = error

    def died(self, rank: int, error: BaseException) -> None:
        """Records a death after which the launch continues; the error becomes the result."""
        self.returned(rank, error)
        self._dead[rank] = error

    def replaced(self, rank: int) -> None:
        """Records that another process has taken the rank's place."""
        self._dead.pop(rank, None)
        self._running.add(rank)

    def results(self) -> list[Any]:
        """Returns results by rank; raises the first failure, or a death if all ranks died."""
        if self.failure is not None:
            raise self.failure
        if len(self._dead) == len(self._results):
            raise self._dead[min(self._dead)]
        return self._results


def exited(rank: int, ended: SystemExit, what: str) -> ProcessDied:
    """Returns the error for a rank that called sys.exit; `what` is "thread" or "process"."""
    code = ended.code
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)  # As Python does.
        code = 1
    how = f"the {what} of rank {rank} exited with {code or 0}"
    return ProcessDied(how, rank=rank, exit_code=code or 0)
