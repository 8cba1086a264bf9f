"""What the ranks of a launch came to: results by rank, or the first failure."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import ProcessDied

LISTEN_S = 0.2
"""How long a launch waits at a time: a Ctrl-C that comes just before a wait begins does not wake
it, and is noticed when it ends."""


class Outcomes:
    """Filled in the order in which ranks end, so that the first failure is the first in time."""

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
        """Later failures are mostly consequences of the first, and are dropped."""
        self._running.discard(rank)
        if self.failure is None:
            error.add_note(f"raised by rank {rank} of {len(self._results)}")
            for dead, why in sorted(self._dead.items()):
                error.add_note(f"rank {dead} had died: {why}")
            self.failure = error

    def died(self, rank: int, error: BaseException) -> None:
        """Of a launch that goes on without: the error stands in the place of the result."""
        self.returned(rank, error)
        self._dead[rank] = error

    def replaced(self, rank: int) -> None:
        """Another process has taken the rank's place."""
        self._dead.pop(rank, None)
        self._running.add(rank)

    def results(self) -> list[Any]:
        """By rank; raises the first failure, or a death if nobody lives."""
        if self.failure is not None:
            raise self.failure
        if len(self._dead) == len(self._results):
            raise self._dead[min(self._dead)]
        return self._results


def exited(rank: int, ended: SystemExit, what: str) -> ProcessDied:
    """sys.exit in the middle of a world, which its other ranks have not agreed to.

    `what`: "thread" or "process".
    """
    code = ended.code
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)  # As Python itself would.
        code = 1
    how = f"the {what} of rank {rank} exited with {code or 0}"
    return ProcessDied(how, rank=rank, exit_code=code or 0)
