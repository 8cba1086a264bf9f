"""The device on which an exchange runs its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..arrays import NUMPY, Arrays, check_array, current_stream, library_of, stream_number


class CallDevice:
    """The device that holds the arrays of a rank's calls, and the stream of the calls."""

    def __init__(self, index: int | None) -> None:
        """Takes the CUDA ordinal, None for the host."""
        self.index = index
        self.name = "cpu" if index is None else f"cuda:{index}"
        self.stream: Callable[[], int] = current_stream(index)
        """Returns torch's current stream as an integer; 0 on the host."""

    def check(
        self,
        argument: str,
        array: Any,
        arrays: Arrays,
        dtypes: tuple[str, ...],
        shape: tuple[int | str, ...],
        *,
        written: bool = False,
    ) -> None:
        """Raises InvalidArgument unless the module can use `array` uncopied; see check_array."""
        check_array(
            argument,
            array,
            arrays=arrays,
            dtypes=dtypes,
            shape=shape,
            device=self.name,
            written=written,
        )

    def stream_of(self, argument: str, stream: Any) -> int:
        """Returns a caller's stream as an integer; 0 on the host."""
        return 0 if self.index is None else stream_number(argument, stream)

    def arrays_like(self, given: tuple[Any, ...]) -> Arrays:
        """Returns the library of the first array in `given`, or the device's default."""
        for array in given:
            if (library := library_of(array)) is not None:
                return library
        if self.index is None:
            return NUMPY
        from ..torch_arrays import TORCH

        return TORCH
