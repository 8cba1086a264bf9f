"""How far a decode is, and how fast, while it runs."""

from __future__ import annotations

import os
import sys
import time

ON_A_TERMINAL_S, ELSEWHERE_S = 0.1, 2.0
"""Between one look and the next."""


def can_change_lines() -> bool:
    """Whether standard error is a terminal that takes back what it has shown."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def fresh_line() -> str:
    """Before what is printed while the progress may stand in its line."""
    return "\r\033[K" if can_change_lines() else ""


class Progress:
    """A line on stderr: on a terminal one that changes, elsewhere another one now and then."""

    def __init__(self, steps: int, sequences: int) -> None:
        self._steps, self._sequences = steps, sequences
        self._begun = self._shown = time.perf_counter()
        self._changes = can_change_lines()

    def show(self, done: int) -> None:
        """So many steps have ended."""
        now = time.perf_counter()
        if now - self._shown < (ON_A_TERMINAL_S if self._changes else ELSEWHERE_S):
            return
        self._shown = now
        rate = done * self._sequences / (now - self._begun)
        text = f"step {done} of {self._steps}, {rate:.1f} tokens/s"
        print(fresh_line() + text, end="" if self._changes else "\n", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """What is printed next has the line to itself."""
        print(fresh_line(), end="", file=sys.stderr, flush=True)
