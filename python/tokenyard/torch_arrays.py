"""Implements `arrays.Arrays` for torch tensors. Imported only once a tensor was passed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack

_VIEWED = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
"""Dtypes that cross into C++ as unsigned integers of the same size."""


@functools.cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@functools.cache
def _text_of(device: torch.device) -> str:
    return str(device)


class TorchArrays:
    """Implements `arrays.Arrays` for torch, on the CPU and on GPUs."""

    name = "torch"

    def dtype(self, array: torch.Tensor) -> str:
        return _name_of(array.dtype)

    def shape(self, array: torch.Tensor) -> tuple[int, ...]:
        return array.shape

    def device(self, array: torch.Tensor) -> str:
        return _text_of(array.device)

    def contiguous(self, array: torch.Tensor) -> bool:
        return array.is_contiguous()

    def writable(self, array: torch.Tensor) -> bool:
        return True

    def to_native(self, array: torch.Tensor) -> Any:
        # A capsule: __dlpack__ takes twenty times as long. It would reject tensors that require
        # gradients, which no plain exchange propagates.
        return to_dlpack(array.view(torch.uint8) if array.dtype in _FLOAT8 else array)

    def from_native(self, array: Any, dtype: str) -> torch.Tensor:
        tensor = from_dlpack(array.__dlpack__())
        return tensor.view(getattr(torch, dtype)) if dtype in _VIEWED else tensor

    def empty(self, shape: tuple[int, ...], dtype: str, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)

    def bits(self, array: torch.Tensor, dtype: str) -> torch.Tensor:
        return array.view(getattr(torch, dtype))

    def from_bytes(self, array: Any, dtype: str) -> torch.Tensor:
        return from_dlpack(array.__dlpack__()).view(getattr(torch, dtype))

    def transposed(self, array: torch.Tensor, rows: int) -> torch.Tensor:
        return array.T[:rows]


TORCH = TorchArrays()


def _asked_for_a_stream(device_index: int) -> int:
    return torch.cuda.current_stream(device_index).cuda_stream


current_stream_of: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _asked_for_a_stream
)
"""Returns torch's current stream on a GPU as a cudaStream_t integer. The function that torch's
compiled code calls takes a tenth of the time that a stream object does."""
