"""Compares a graph's tokens with the reference's."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from .reference import Reference

TOLERANCE = 0.05
"""Allowed distance of a graph's token below the best logit, in standard deviations of the step's
logits: graphs keep keys, values and inner elements in BF16."""


@dataclass
class Verdict:
    """The result of the comparison, of one sequence or several."""

    wrong: list[str] = field(default_factory=list)
    ties: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.wrong:
            return f"NumPy finds others: {'; '.join(self.wrong)}"
        if not self.ties:
            return "NumPy finds the same"
        return f"NumPy finds the same, but for what are nearly ties: {'; '.join(self.ties)}"


def check(
    reference: Reference,
    prompts: list[list[int]],
    found: list[list[int]],
    stops: Collection[int],
    count: int,
) -> Verdict:
    """Feeds each sequence's tokens to the reference, and compares with the tokens it would choose.

    Args:
        found: the tokens of each sequence, its prompt included.
        stops: tokens that end a sequence.
        count: tokens of a complete sequence, unless one of `stops` ends it.
    """
    verdict = Verdict()
    for sequence, (prompt, tokens) in enumerate(zip(prompts, found, strict=True)):
        name = f"of sequence {sequence} " if len(prompts) > 1 else ""
        decided = tokens[len(prompt) :]
        if tokens[: len(prompt)] != prompt:
            verdict.wrong.append(f"{name}another prompt")
            continue
        ended = [token in stops for token in decided]
        if any(ended[:-1]) or (len(tokens) < count and not any(ended)):
            verdict.wrong.append(f"{name}an end after {len(decided)} tokens")
        if not decided:
            continue
        logits = reference.logits(tokens[:-1])[len(prompt) - 1 :]
        for position, (row, token) in enumerate(zip(logits, decided, strict=True), len(prompt)):
            best = int(np.argmax(row))
            lower = float((row[best] - row[token]) / np.std(row))
            if token == best:
                continue
            said = f"{name}at position {position} {best}, of which the logit is above that of "
            said += f"{token} by {lower:.2g} standard deviations"
            (verdict.ties if lower <= TOLERANCE else verdict.wrong).append(said)
    return verdict
