"""What the package asks of an array, whoever made it: NumPy's answer, and the way to torch's.

Arrays are checked here, where a message can name the argument and both values, and cross into C++
with their memory and nothing else: BF16 as the integers of its bits. Nothing is ever copied.
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

A = TypeVar("A", NDArray[Any], "torch.Tensor")
"""A NumPy array or a torch tensor: results are of the kind that came in.

One of two types, not any: arrays of several dtypes, such as rows, ids and weights, are then all
`NDArray[Any]` to a type checker, and not the `object` that is all they have in common.
"""


class Arrays(Protocol):
    """The words in which the package speaks to a library of arrays."""

    name: str

    def dtype(self, array: Any) -> str: ...
    def shape(self, array: Any) -> tuple[int, ...]: ...
    def device(self, array: Any) -> str: ...
    def contiguous(self, array: Any) -> bool: ...
    def writable(self, array: Any) -> bool: ...
    def to_native(self, array: Any) -> Any:
        """The same memory as the module takes it, once."""

    def from_native(self, array: Any, dtype: str) -> Any:
        """The arena's memory, as an array of this library that keeps it alive."""

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any: ...
    def bits(self, array: Any, dtype: str) -> Any:
        """The same memory read as another dtype of the same size."""

    def from_bytes(self, array: Any, dtype: str) -> Any:
        """As from_native, of a matrix of bytes."""

    def transposed(self, array: Any, rows: int) -> Any:
        """[rows, columns]: a view of the first `rows` of [columns, stride]."""


@functools.cache
def _name_of(dtype: np.dtype) -> str:
    # NumPy puts it together anew every time, and says "float32" of either byte order.
    return dtype.name if dtype.isnative else dtype.str


class NumpyArrays:
    """NumPy, with ml_dtypes for bfloat16."""

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
        # By name: NumPy takes long to compare a dtype with a type that is not its own.
        dtype = _name_of(array.dtype)
        if dtype == "bfloat16":
            return array.view(np.uint16)
        return array.view(np.uint8) if dtype == "float8_e4m3fn" else array

    def from_native(self, array: Any, dtype: str) -> np.ndarray:
        view = np.asarray(array)
        if dtype in ("bfloat16", "float8_e4m3fn"):
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
    """The library that arrays of this type are of."""
    if issubclass(kind, np.ndarray):
        return NUMPY
    torch = sys.modules.get("torch")  # Whoever has a tensor has imported it.
    if torch is not None and issubclass(kind, torch.Tensor):
        from .torch_arrays import TORCH

        return TORCH
    return None


def library_of(array: Any) -> Arrays | None:
    """Returns the library that `array` is of; None for a list, a scalar, None."""
    kind: Any = type(array)
    return _library_of_type(kind)


def arrays_of(argument: str, array: Any) -> Arrays:
    """The library that `array` is of; raises InvalidArgument for a list, a scalar, None."""
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
    """Raises InvalidArgument unless `array` is what the module can take as it lies, and write to.

    A number in `shape` is demanded, a name stands for any length.
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
    """Says which stream work is enqueued on now, as an integer; 0 on the host."""
    if device_index is None:
        return int
    from .torch_arrays import current_stream_of

    return functools.partial(current_stream_of, device_index)


def stream_number(argument: str, stream: Any) -> int:
    """A torch stream as the integer that CUDA knows it by; an integer is one already."""
    return size_of(argument, getattr(stream, "cuda_stream", stream), largest=2**64 - 1)
