"""Operations of torch for the casts, on any device: see `casts`. Imported once a tensor came."""

from __future__ import annotations

import torch
from torch import Tensor

from .casts import E4M3_MAX


class TorchOps:
    """Operations whose results have the same bits as NumPy's."""

    @staticmethod
    def float32(x: Tensor) -> Tensor:
        return x.detach().float()

    @staticmethod
    def number(value: float, like: Tensor) -> Tensor:
        # On the device: a Python number would be converted beside the arrays, in another precision.
        return torch.full((), value, dtype=torch.float32, device=like.device)

    @staticmethod
    def most(groups: Tensor) -> Tensor:
        return groups.abs().amax(-1)

    @staticmethod
    def bits(values: Tensor) -> Tensor:
        return values.view(torch.int32)

    @staticmethod
    def negative(values: Tensor) -> Tensor:
        return values.signbit()

    @staticmethod
    def at_least(values: Tensor, least: int) -> Tensor:
        return values.clamp(min=least)

    @staticmethod
    def where(condition: Tensor, yes: Tensor | int, no: Tensor | int) -> Tensor:
        return torch.where(condition, yes, no)

    @staticmethod
    def from_bits(values: Tensor) -> Tensor:
        return values.view(torch.float32)

    @staticmethod
    def to_e4m3(values: Tensor) -> Tensor:
        within = values.clamp(-E4M3_MAX, E4M3_MAX)
        return within.to(torch.float8_e4m3fn).view(torch.uint8).int()

    @staticmethod
    def from_e4m3(bits: Tensor) -> Tensor:
        return bits.to(torch.uint8).view(torch.float8_e4m3fn).float()

    @staticmethod
    def byte(values: Tensor) -> Tensor:
        return values.to(torch.uint8)

    @staticmethod
    def as_e4m3(values: Tensor) -> Tensor:
        return values.view(torch.float8_e4m3fn)

    @staticmethod
    def as_bytes(values: Tensor) -> Tensor:
        return values.view(torch.uint8)

    @staticmethod
    def as_words(values: Tensor) -> Tensor:
        return values.view(torch.int32)

    @staticmethod
    def padded(values: Tensor, rows: int, columns: int) -> Tensor:
        behind = (0, columns - values.size(1), 0, rows - values.size(0))
        return torch.nn.functional.pad(values, behind).contiguous()

    @staticmethod
    def ordered(values: Tensor, axes: tuple[int, ...]) -> Tensor:
        return values.permute(axes)
