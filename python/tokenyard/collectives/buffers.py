"""Converts NumPy arrays to the buffers that collectives take: C-contiguous, of a known dtype."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from _tokenyard import DataType

from ..errors import invalid

Buffer = tuple[np.ndarray, DataType]
"""A uint8 view [bytes] of an array's memory, and the type of its elements."""

TYPES: dict[np.dtype, DataType] = {
    np.dtype(getattr(ml_dtypes, name, name)): kind for name, kind in DataType.__members__.items()
}
"""Supported dtypes, in native byte order only: np.dtype(">f4") is not a key."""


def buffer_of(argument: str, array: np.ndarray) -> Buffer:
    """Returns a view of `array`; raises InvalidArgument if it would have to be copied.

    >>> bytes, kind = buffer_of("array", np.zeros((3, 2), np.float32))
    >>> bytes.shape, kind.name
    ((24,), 'float32')
    """
    if not isinstance(array, np.ndarray):
        raise invalid(argument, "a NumPy array", type(array).__name__)
    kind = TYPES.get(array.dtype)
    if kind is None:
        known = ", ".join(DataType.__members__)
        raise invalid(argument, f"dtype {known}", f"dtype {array.dtype}")
    if not array.flags.c_contiguous:
        raise invalid(argument, "a C-contiguous array", "one with gaps or in another order")
    return array.reshape(-1).view(np.uint8), kind


def written_buffer_of(argument: str, array: np.ndarray) -> Buffer:
    """Returns `buffer_of` an array that is written to; raises if it is read-only."""
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise invalid(argument, "an array that can be written to", "a read-only one")
    return buffer_of(argument, array)


def parts_of(
    argument: str, parts: Sequence[np.ndarray] | np.ndarray, ranks: int
) -> list[np.ndarray]:
    """Returns one array per rank: the elements of a list, or the rows of one array."""
    if isinstance(parts, np.ndarray):
        if parts.ndim == 0 or parts.shape[0] != ranks:
            raise invalid(
                argument, f"shape [{ranks}, ...], a row for each rank", f"shape {list(parts.shape)}"
            )
        if not parts.flags.c_contiguous:  # reshape() would copy it.
            raise invalid(argument, "a C-contiguous array", "one with gaps or in another order")
        return list(parts.reshape(ranks, -1))
    if not isinstance(parts, Sequence) or len(parts) != ranks:
        seen = f"{len(parts)}" if isinstance(parts, Sequence) else type(parts).__name__
        raise invalid(argument, f"{ranks} arrays, one for each rank", seen)
    return list(parts)
