"""The size of a HybridEPBuffer, and of the exchanges in it."""

from __future__ import annotations

import math
import os

import tokenyard
from tokenyard.errors import invalid

from .hybrid_routes import CHOICES_MAX
from .throughput import SMS_MAX

CONTROL_BYTES = 64 << 20
"""Arena bytes beyond those of calls: control words, and rounded sizes."""
CHOICES = 8
"""Choices per token for which there is room at least, so that few calls make a buffer grow."""
IMBALANCE = 4.0
"""Rows by expert of a rank for which there is room, as a multiple of a balanced number."""
HANDLES_KEPT = 64
"""Handles of the largest size that fit at once: a trainer keeps one per layer and batch."""
CHOICES_VARIABLE = "TOKENYARD_HYBRID_EP_CHOICES"
"""Environment variable: the largest number of experts of a token."""
IMBALANCE_VARIABLE = "TOKENYARD_HYBRID_EP_IMBALANCE"
"""Environment variable that overrides IMBALANCE."""


def choices_from_environment() -> int | None:
    """Returns the largest number of experts of a token; None if the environment has none."""
    text = os.environ.get(CHOICES_VARIABLE)
    if text is None:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= CHOICES_MAX:
        raise invalid(CHOICES_VARIABLE, f"1 to {CHOICES_MAX} in the environment", repr(text))
    return int(text)


def imbalance() -> float:
    """Returns the environment's multiple of a balanced number of rows, or IMBALANCE."""
    text = os.environ.get(IMBALANCE_VARIABLE, str(IMBALANCE))
    try:
        multiple = float(text)
    except ValueError:
        multiple = math.nan
    if not 1 <= multiple < math.inf:
        raise invalid(IMBALANCE_VARIABLE, "1 or more in the environment", repr(text))
    return multiple


def options_of(experts: int, hidden: int, choices: int, tokens_max: int) -> dict[str, int]:
    """Returns the options of an exchange."""
    return dict(
        experts=experts, hidden=hidden, topk=choices, tokens_max=tokens_max, sms_max=SMS_MAX
    )


def arena_bytes(ranks: int, options: dict[str, int], places: int | None) -> int:
    """Returns the arena bytes for calls on an exchange of these options.

    One dispatch is under way at a time: its rows, then these by expert, are copied to memory of
    torch. A combine copies rows, too. Only handles keep arena memory, 4 bytes per choice for the
    rows by expert beside the route's.

    Args:
        places: rows by expert, if the caller limits them.
    """
    row, tokens = 2 * options["hidden"], options["tokens_max"]
    received = ranks * tokens
    if places is None:
        roomy = min(max(options["topk"], CHOICES), options["experts"])
        options = options | dict(topk=roomy)
        places = min(round(imbalance() * tokens * roomy), received * roomy)
    memory = tokenyard.ExpertParallel.memory(ranks=ranks, **options)
    handle = memory.kept_by_route_bytes + 4 * received * options["topk"] + 8 * places
    rows = memory.peak_bytes + (received + places) * row
    return CONTROL_BYTES + memory.arena_bytes + rows + HANDLES_KEPT * handle
