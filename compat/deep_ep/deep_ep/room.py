"""Advice in out-of-memory errors, which name an arena that DeepEP's users do not know."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tokenyard.errors import InvalidArgument

OF_ROOM = ("tokens", "arena_bytes")
"""Arguments that such errors name: too many tokens in a call, or no memory for its rows."""


@contextlib.contextmanager
def advised(advice: str) -> Iterator[None]:
    """Adds a note to such errors that are raised in the block."""
    try:
        yield
    except InvalidArgument as error:
        if error.argument in OF_ROOM:
            error.add_note(advice)
        raise
