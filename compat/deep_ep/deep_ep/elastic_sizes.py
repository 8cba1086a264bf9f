"""How much memory an ElasticBuffer of some size has."""

from __future__ import annotations

from .config import METADATA_BYTES

ALIGNMENT = 2 << 20
"""Sizes are multiples of it, as DeepEP's are."""
CALLS_HELD = 8
"""Calls of the largest size that find room at once: a handle keeps the rows that came with it, and
DeepEP's own test has two rounds of four dispatches alive."""
CHOICES = 8
"""Experts a token, where callers do not say."""


def buffer_bytes(ranks: int, tokens_max: int, hidden: int, topk: int) -> int:
    """Room for received rows, all tokens of all ranks, and for the same rows by expert, of experts
    that share the tokens fairly; some calls of each. Of rows of two bytes a channel."""
    row = 2 * hidden + METADATA_BYTES
    rows = tokens_max * (ranks + (topk or CHOICES))
    return -(-CALLS_HELD * rows * row // ALIGNMENT) * ALIGNMENT
