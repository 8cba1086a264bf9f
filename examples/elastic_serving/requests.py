"""Requests, whose answers are exact, so that runs can be compared bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

HIDDEN, TOPK = 64, 2
LENGTH = 12
"""Decode steps per request."""
LETTERS = 8
"""Elements of a token are integers below this; sums of them are exact in any format."""


@dataclass
class Request:
    """A request that is being served."""

    number: int
    step: int = 0
    token: np.ndarray = field(default_factory=lambda: np.zeros(HIDDEN, np.int64))
    lost: int = 0
    """Results of experts that the token lacks."""

    def __post_init__(self) -> None:
        self.token = np.random.default_rng(self.number).integers(0, LETTERS, HIDDEN)

    def choices(self, experts: int) -> np.ndarray:
        """Returns the experts of the next step."""
        first = (7 * self.number + 3 * self.step) % experts
        return np.array([first, (first + 1 + self.number % (experts - 1)) % experts])

    def advance(self, results: np.ndarray, lost: int) -> bool:
        """Takes the sum of the experts' results; returns whether the request is answered."""
        self.token = (results.astype(np.int64) + 1) % LETTERS
        self.lost += lost
        self.step += 1
        return self.step == LENGTH


def result_of(expert: int, rows: np.ndarray) -> np.ndarray:
    """Returns what an expert makes of [rows, HIDDEN]."""
    return np.roll(rows, expert + 1, axis=-1)


def answer_of(number: int, experts: int) -> bytes:
    """Returns the answer to a request, computed in one place."""
    request = Request(number)
    while True:
        sums = sum(result_of(int(expert), request.token) for expert in request.choices(experts))
        if request.advance(np.asarray(sums), 0):
            return request.token.tobytes()
