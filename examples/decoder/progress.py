"""Shows the progress and speed of a running decode."""

from __future__ import annotations

import os
import sys
import time

ON_A_TERMINAL_S, ELSEWHERE_S = 0.1, 2.0
"""Seconds between updates."""


def can_change_lines() -> bool:
    """Returns whether standard error is a terminal that can erase a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def fresh_line() -> str:
    """Returns the text that erases a line of progress before other output."""
    return "\r\033[K" if can_change_lines() else ""


class Progress:
    """Progress on stderr: one changing line on a terminal, elsewhere a new line now and then."""

    def __init__(self, steps: int, sequences: int) -> None:
        self._steps, self._sequences = steps, sequences
        self._begun = self._shown = time.perf_counter()
        self._changes = can_change_lines()

    def show(self, done: int) -> None:
        """Shows that `done` steps have ended."""
        now = time.perf_counter()
        if now - self._shown < (ON_A_TERMINAL_S if self._changes else ELSEWHERE_S):
            return
        self._shown = now
        rate = done * self._sequences / (now - self._begun)
        text = f"step {done} of {self._steps}, {rate:.1f} tokens/s"
        print(fresh_line() + text, end="" if self._changes else "\n", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Erases the line of progress."""
        print(fresh_line(), end="", file=sys.stderr, flush=True)
