"""Checks of integers and names that callers pass."""

from __future__ import annotations

import operator
from typing import Any

from .errors import invalid


def size_of(argument: str, value: Any, *, smallest: int = 0, largest: int = 2**32 - 1) -> int:
    """Returns `value` as an int; raises InvalidArgument if it is no integer or out of range.

    Rejects bool, which Python counts among the integers.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        size = operator.index(value)
    except TypeError:
        raise invalid(argument, "an integer", repr(value)) from None
    if not smallest <= size <= largest:
        raise invalid(argument, f"an integer from {smallest} to {largest}", str(size))
    return size


def text_of(argument: str, value: Any) -> str:
    """Returns `value`; raises InvalidArgument if it is not a string, or empty."""
    if not isinstance(value, str) or not value:
        raise invalid(argument, "a text that is not empty", repr(value))
    return value
