"""Tensors over memory of which callers of raw functions give the address alone."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch


def tensor_at(
    address: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Returns a tensor over a caller's memory, which has to outlive it."""
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    if device.type == "cpu":
        held = (ctypes.c_byte * size).from_address(address)
        raw = torch.frombuffer(held, dtype=torch.uint8)
    else:
        raw = torch.as_tensor(_Memory(address, size), device=device)
    return raw.view(dtype).view(tuple(shape))


class _Memory:
    """Bytes on a GPU, as torch reads them."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = dict(
            shape=(size,), typestr="|u1", data=(address, False), version=3, strides=None
        )
