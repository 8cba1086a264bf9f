"""The size of an ElasticBuffer."""

from __future__ import annotations

from .config import METADATA_BYTES

ALIGNMENT = 2 << 20
"""Sizes are multiples of this, like DeepEP's."""
CALLS_HELD = 8
"""Calls of the largest size that fit at once: a handle keeps its rows, and DeepEP's own test keeps
two rounds of four dispatches alive."""
CHOICES = 8
"""Default experts per token."""


def buffer_bytes(ranks: int, tokens_max: int, hidden: int, topk: int) -> int:
    """Returns the bytes for CALLS_HELD calls with rows of two bytes per channel.

    Each call has rows for all tokens of all ranks, and the same rows by expert if tokens are
    balanced over the experts.
    """
    row = 2 * hidden + METADATA_BYTES
    rows = tokens_max * (ranks + (topk or CHOICES))
    return -(-CALLS_HELD * rows * row // ALIGNMENT) * ALIGNMENT
