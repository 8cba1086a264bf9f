"""torch tensors, on the CPU and on GPUs. Imported only once a tensor has come in."""

from __future__ import annotations

from typing import Any

import torch


class TorchArrays:
    """See arrays.Arrays."""

    name = "torch"

    def dtype(self, array: torch.Tensor) -> str:
        return str(array.dtype).removeprefix("torch.")

    def shape(self, array: torch.Tensor) -> tuple[int, ...]:
        return tuple(array.shape)

    def device(self, array: torch.Tensor) -> str:
        return str(array.device)

    def contiguous(self, array: torch.Tensor) -> bool:
        return array.is_contiguous()

    def to_native(self, array: torch.Tensor) -> torch.Tensor:
        # Gradients do not pass through an exchange by themselves, and DLPack refuses them.
        array = array.detach()
        return array.view(torch.uint16) if array.dtype == torch.bfloat16 else array

    def from_native(self, array: Any, dtype: str) -> torch.Tensor:
        tensor = torch.from_dlpack(array)
        return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor

    def empty(self, shape: tuple[int, ...], dtype: str, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)


def current_stream_of(device_index: int) -> int:
    """torch's current stream on that GPU, as the integer that CUDA knows it by."""
    return torch.cuda.current_stream(device_index).cuda_stream
