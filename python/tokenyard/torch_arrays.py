"""torch tensors, on the CPU and on GPUs. Imported only once a tensor has come in."""

from __future__ import annotations

import functools
from typing import Any

import torch

_VIEWED = ("bfloat16", "float8_e4m3fn")
"""What crosses as the integers of its bits."""


@functools.cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@functools.cache
def _text_of(device: torch.device) -> str:
    return str(device)


class TorchArrays:
    """See arrays.Arrays."""

    name = "torch"

    def dtype(self, array: torch.Tensor) -> str:
        return _name_of(array.dtype)

    def shape(self, array: torch.Tensor) -> tuple[int, ...]:
        return tuple(array.shape)

    def device(self, array: torch.Tensor) -> str:
        return _text_of(array.device)

    def contiguous(self, array: torch.Tensor) -> bool:
        return array.is_contiguous()

    def to_native(self, array: torch.Tensor) -> torch.Tensor:
        # Gradients do not pass through an exchange by themselves, and DLPack refuses them.
        array = array.detach()
        if array.dtype == torch.bfloat16:
            return array.view(torch.uint16)
        return array.view(torch.uint8) if array.dtype == torch.float8_e4m3fn else array

    def from_native(self, array: Any, dtype: str) -> torch.Tensor:
        tensor = torch.from_dlpack(array)
        return tensor.view(getattr(torch, dtype)) if dtype in _VIEWED else tensor

    def empty(self, shape: tuple[int, ...], dtype: str, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)

    def bits(self, array: torch.Tensor, dtype: str) -> torch.Tensor:
        return array.view(getattr(torch, dtype))

    def to_bytes(self, array: torch.Tensor) -> torch.Tensor:
        return array.detach().view(torch.uint8)

    def from_bytes(self, array: Any, dtype: str) -> torch.Tensor:
        return torch.from_dlpack(array).view(getattr(torch, dtype))

    def transposed(self, array: torch.Tensor, rows: int) -> torch.Tensor:
        return array.T[:rows]


TORCH = TorchArrays()


def current_stream_of(device_index: int) -> int:
    """torch's current stream on that GPU, as the integer that CUDA knows it by."""
    return torch.cuda.current_stream(device_index).cuda_stream
