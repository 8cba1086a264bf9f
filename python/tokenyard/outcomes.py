"""What the ranks of a launch came to: results by rank, or the first failure."""

from __future__ import annotations

import sys
from typing import Any

from .errors import ProcessDied

LISTEN_S = 0.2
"""How long a launch waits at a time: a Ctrl-C that comes just before a wait begins does not wake
it, and is noticed when it ends."""


class Outcomes:
    """Filled in the order in which ranks end, so that the first failure is the first in time."""

    def __init__(self, ranks: int) -> None:
        self._results: list[Any] = [None] * ranks
        self._running = set(range(ranks))
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
            self.failure = error

    def results(self) -> list[Any]:
        """By rank; raises the first failure."""
        if self.failure is not None:
            raise self.failure
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
