"""The size of a HybridEPBuffer, and of the exchanges in it."""

from __future__ import annotations

import os

import tokenyard
from tokenyard.errors import invalid

from .hybrid_routes import CHOICES_MAX
from .throughput import SMS_MAX

CONTROL_BYTES = 64 << 20
"""Arena bytes beyond those of calls: control words, and rounded sizes."""
CHOICES = 8
"""Choices per token for which there is room at least, so that few calls make a buffer grow."""
IMBALANCE = 2
"""Rows by expert of a rank for which there is room, as a multiple of a balanced number."""
HANDLES_KEPT = 64
"""Handles of the largest size that fit at once: a trainer keeps one per layer and batch."""
CHOICES_VARIABLE = "TOKENYARD_HYBRID_EP_CHOICES"
"""Environment variable: the largest number of experts of a token."""


def choices_from_environment() -> int | None:
    """Returns the largest number of experts of a token; None if the environment has none."""
    text = os.environ.get(CHOICES_VARIABLE)
    if text is None:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= CHOICES_MAX:
        raise invalid(CHOICES_VARIABLE, f"1 to {CHOICES_MAX} in the environment", repr(text))
    return int(text)


def options_of(experts: int, hidden: int, choices: int, tokens_max: int) -> dict[str, int]:
    """Returns the options of an exchange."""
    return dict(
        experts=experts, hidden=hidden, topk=choices, tokens_max=tokens_max, sms_max=SMS_MAX
    )


def arena_bytes(ranks: int, options: dict[str, int]) -> int:
    """Returns the arena bytes for calls on an exchange of these options.

    One dispatch is under way at a time: its rows, then these by expert, are copied to memory of
    torch. A combine copies rows, too. Only handles keep arena memory, 4 bytes per choice for the
    rows by expert beside the route's.
    """
    memory = tokenyard.ExpertParallel.memory(ranks=ranks, **options)
    row, choices = 2 * options["hidden"], options["topk"]
    received = ranks * options["tokens_max"]
    by_expert = IMBALANCE * options["tokens_max"] * choices
    handle = memory.kept_by_route_bytes + 4 * received * choices + 8 * by_expert
    rows = memory.peak_bytes + (received + by_expert) * row
    return CONTROL_BYTES + memory.arena_bytes + rows + HANDLES_KEPT * handle
