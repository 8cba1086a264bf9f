"""A text as numbered letters, and each rank's share of every step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Letters:
    """A text to train on."""

    alphabet: str
    """Every letter of the text once."""
    text: np.ndarray
    """[length] int64 into `alphabet`."""

    def batch(self, step: int, rank: int, rows: int, context: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns a rank's batch of a step, which depends on these numbers alone.

        Returns:
            [rows, context] letters, and [rows] the letter that follows each.
        """
        rng = np.random.default_rng((step, rank))
        first = rng.integers(0, len(self.text) - context, rows)
        windows = self.text[first[:, None] + np.arange(context + 1)]
        return windows[:, :-1], windows[:, -1]


def read_letters(path: Path) -> Letters:
    """Reads a text; raises ValueError if it is too short to train on."""
    text = " ".join(path.read_text(encoding="utf-8").split())
    if len(text) < 100:
        raise ValueError(f"{path} has only {len(text)} letters; 100 are needed")
    alphabet = "".join(sorted(set(text)))
    number = {letter: index for index, letter in enumerate(alphabet)}
    return Letters(alphabet, np.array([number[letter] for letter in text], np.int64))
