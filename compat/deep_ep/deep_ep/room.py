"""What a caller can do about errors of room: they name an arena, which DeepEP has none of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tokenyard.errors import InvalidArgument

OF_ROOM = ("tokens", "arena_bytes")
"""What they are about: a call with too many tokens, or no room for what it brings."""


@contextlib.contextmanager
def advised(advice: str) -> Iterator[None]:
    """Adds a note to such an error of the calls within."""
    try:
        yield
    except InvalidArgument as error:
        if error.argument in OF_ROOM:
            error.add_note(advice)
        raise
