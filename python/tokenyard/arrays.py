"""The operations the package needs from an array library, implemented for NumPy.

Arrays are checked here, where an error can name the argument, the expected and the actual value.
Only their memory crosses into C++, BF16 as unsigned integers. Nothing is ever copied.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .errors import invalid
from .sizes import size_of

if TYPE_CHECKING:
    import torch

_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
A = TypeVar("A", NDArray[Any], "torch.Tensor")
"""A NumPy array or a torch tensor; a call returns the kind that it was given.

A constrained variable, not an unbounded one: a type checker then joins arrays of several dtypes
(rows, ids, weights) to `NDArray[Any]` instead of `object`.
"""


class Arrays(Protocol):
    """The interface that the package requires of an array library."""

    name: str

    def dtype(self, array: Any) -> str: ...
    def shape(self, array: Any) -> tuple[int, ...]: ...
    def device(self, array: Any) -> str: ...
    def contiguous(self, array: Any) -> bool: ...
    def writable(self, array: Any) -> bool: ...
    def to_native(self, array: Any) -> Any:
        """Returns a view of the same memory in the form that `_tokenyard` takes, for one call."""

    def from_native(self, array: Any, dtype: str) -> Any:
        """Returns arena memory as an array of this library, which keeps the memory alive."""

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any: ...
    def bits(self, array: Any, dtype: str) -> Any:
        """Returns a view of the same memory as another dtype of the same size."""

    def from_bytes(self, array: Any, dtype: str) -> Any:
        """Returns a matrix of arena bytes as an array of `dtype`, like `from_native`."""

    def transposed(self, array: Any, rows: int) -> Any:
        """Returns a view [rows, columns] of an array [columns, stride], rows <= stride."""


@functools.cache
def _name_of(dtype: np.dtype) -> str:
    # Cached because NumPy builds the name on every access. `name` omits the byte order.
    return dtype.name if dtype.isnative else dtype.str


class NumpyArrays:
    """Implements `Arrays` for NumPy, with bfloat16 and float8 from ml_dtypes."""

    name = "numpy"

    def dtype(self, array: np.ndarray) -> str:
        return _name_of(array.dtype)

    def shape(self, array: np.ndarray) -> tuple[int, ...]:
        return array.shape

    def device(self, array: np.ndarray) -> str:
        return "cpu"

    def contiguous(self, array: np.ndarray) -> bool:
        return array.flags.c_contiguous

    def writable(self, array: np.ndarray) -> bool:
        return array.flags.writeable

    def to_native(self, array: np.ndarray) -> np.ndarray:
        # By name: NumPy is slow to compare a dtype with a type that is not its own.
        dtype = _name_of(array.dtype)
        if dtype == "bfloat16":
            return array.view(np.uint16)
        return array.view(np.uint8) if dtype in _FLOAT8 else array

    def from_native(self, array: Any, dtype: str) -> np.ndarray:
        view = np.asarray(array)
        if dtype == "bfloat16" or dtype in _FLOAT8:
            return view.view(getattr(ml_dtypes, dtype))
        return view

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> np.ndarray:
        return np.empty(shape, getattr(ml_dtypes, dtype, dtype))

    def bits(self, array: np.ndarray, dtype: str) -> np.ndarray:
        return array.view(dtype)

    def from_bytes(self, array: Any, dtype: str) -> np.ndarray:
        return np.asarray(array).view(getattr(ml_dtypes, dtype, dtype))

    def transposed(self, array: np.ndarray, rows: int) -> np.ndarray:
        return array.T[:rows]


NUMPY = NumpyArrays()


@functools.cache
def _library_of_type(kind: type) -> Arrays | None:
    """Returns the library that arrays of type `kind` belong to."""
    if issubclass(kind, np.ndarray):
        return NUMPY
    torch = sys.modules.get("torch")  # A tensor exists only once torch is imported.
    if torch is not None and issubclass(kind, torch.Tensor):
        from .torch_arrays import TORCH

        return TORCH
    return None


def library_of(array: Any) -> Arrays | None:
    """Returns the library that `array` belongs to; None for a list, a scalar or None."""
    kind: Any = type(array)
    return _library_of_type(kind)


def arrays_of(argument: str, array: Any) -> Arrays:
    """Returns the library that `array` belongs to; raises InvalidArgument if it is no array."""
    library = library_of(array)
    if library is None:
        raise invalid(argument, "a NumPy array or a torch tensor", type(array).__name__)
    return library


def _fits(seen: tuple[int, ...], shape: tuple[int | str, ...]) -> bool:
    return len(seen) == len(shape) and all(
        isinstance(want, str) or want == have for want, have in zip(shape, seen, strict=True)
    )


def check_array(
    argument: str,
    array: Any,
    *,
    arrays: Arrays,
    dtypes: tuple[str, ...],
    shape: tuple[int | str, ...],
    device: str,
    written: bool,
) -> None:
    """Raises InvalidArgument unless the module can use `array` without a copy.

    An integer in `shape` must match; a name matches any length. If `written`, the array must be
    writable.
    """
    found = arrays_of(argument, array)
    if found is not arrays:
        raise invalid(argument, f"a {arrays.name} array like the others", f"a {found.name} array")
    if arrays.dtype(array) not in dtypes:
        raise invalid(argument, f"dtype {' or '.join(dtypes)}", f"dtype {arrays.dtype(array)}")
    seen = arrays.shape(array)
    if seen != shape and not _fits(seen, shape):
        wanted = ", ".join(str(length) for length in shape)
        raise invalid(argument, f"shape [{wanted}]", f"shape {list(seen)}")
    if arrays.device(array) != device:
        raise invalid(argument, f"device {device}", f"device {arrays.device(array)}")
    if not arrays.contiguous(array):
        raise invalid(argument, "a C-contiguous array", "one with gaps or in another order")
    if written and not arrays.writable(array):
        raise invalid(argument, "an array that can be written to", "a read-only one")


def current_stream(device_index: int | None) -> Callable[[], int]:
    """Returns a function that gives the current stream as an integer; 0 on the host."""
    if device_index is None:
        return int
    from .torch_arrays import current_stream_of

    return functools.partial(current_stream_of, device_index)


def stream_number(argument: str, stream: Any) -> int:
    """Returns the cudaStream_t of a torch stream, or of an integer, as an integer."""
    return size_of(argument, getattr(stream, "cuda_stream", stream), largest=2**64 - 1)
