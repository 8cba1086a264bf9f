"""The arithmetic of DeepEP's tests: FP8 by groups of 128 channels, differences, hashes."""

from __future__ import annotations

import torch

GROUP = 128
FP8_LARGEST = 448.0
SMALLEST_AMAX = 1e-4
"""Lower bound of a group's largest magnitude, for its scale."""


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """Returns 1 - 2 <x, y> / (<x, x> + <y, y>) after adding 1 to both; 0 for equal tensors."""
    x, y = x.double() + 1, y.double() + 1
    return (1 - 2 * (x * y).sum() / (x * x + y * y).sum()).item()


def ceil_div(x: int, y: int) -> int:
    return -(-x // y)


def align(x: int, y: int) -> int:
    """Returns the smallest multiple of y that is at least x."""
    return ceil_div(x, y) * y


def safe_div(a: float, b: float) -> float:
    """Returns a / b, with 0 / 0 = 0."""
    return 0 if a == 0 and b == 0 else a / b


def per_token_cast_to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Casts [tokens, hidden] to E4M3; returns it with [tokens, groups] float32 scales."""
    hidden = x.size(1)
    padded = _in_groups(x).float()
    amax = padded.abs().amax(2, keepdim=True).clamp(SMALLEST_AMAX)
    codes = (padded * (FP8_LARGEST / amax)).to(torch.float8_e4m3fn)
    return codes.flatten(1)[:, :hidden].contiguous(), amax[:, :, 0] / FP8_LARGEST


def per_token_cast_back(x_fp8: torch.Tensor, x_scales: torch.Tensor) -> torch.Tensor:
    """Inverts the cast, to bfloat16. Scales may be packed, four exponents per word."""
    tokens, hidden = x_fp8.shape
    if x_scales.dtype == torch.int:
        exponents = x_scales.contiguous().view(torch.uint8).to(torch.int)
        x_scales = (exponents << 23).view(torch.float)
    padded = _in_groups(x_fp8.float())
    values = padded * x_scales.reshape(tokens, padded.size(1), 1)
    return values.flatten(1)[:, :hidden].to(torch.bfloat16).contiguous()


def _in_groups(x: torch.Tensor) -> torch.Tensor:
    """Returns x as [tokens, groups, 128], padded with zeros."""
    tokens, hidden = x.shape
    padded = torch.nn.functional.pad(x, (0, -hidden % GROUP))
    return padded.view(tokens, padded.size(1) // GROUP, GROUP)


def inplace_unique(x: torch.Tensor, num_slots: int) -> None:
    """Replaces each row by its distinct numbers below num_slots, descending, then -1."""
    counts = torch.zeros(x.size(0), num_slots + 1, dtype=x.dtype, device=x.device)
    counts.scatter_(1, x.masked_fill(x < 0, num_slots), 1)
    numbers = torch.arange(num_slots, dtype=x.dtype, device=x.device).expand(x.size(0), -1)
    found = numbers.masked_fill(counts[:, :num_slots] == 0, -1).sort(dim=1, descending=True).values
    x.fill_(-1)
    columns = min(num_slots, x.size(1))
    x[:, :columns] = found[:, :columns]


def create_grouped_scores(
    scores: torch.Tensor, group_idx: torch.Tensor, num_groups: int
) -> torch.Tensor:
    """Returns scores of experts with 0 for those outside of each token's groups.

    Args:
        scores: [tokens, experts]; experts form num_groups groups of equal size, in order.
        group_idx: [tokens, any] int64 groups of each token.

    >>> create_grouped_scores(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[1]]), 2).tolist()
    [[0.0, 0.0, 3.0, 4.0]]
    """
    tokens, experts = scores.shape
    chosen = torch.zeros(tokens, num_groups, dtype=torch.bool, device=scores.device)
    chosen.scatter_(1, group_idx, True)
    return scores.masked_fill(~chosen.repeat_interleave(experts // num_groups, 1), 0)


def count_bytes(*tensors: torch.Tensor | tuple[torch.Tensor, ...] | None) -> int:
    """Returns the total bytes of all tensors."""
    total = 0
    for each in tensors:
        if isinstance(each, tuple):
            total += count_bytes(*each)
        elif each is not None:
            total += each.numel() * each.element_size()
    return total


def hash_tensor(t: torch.Tensor) -> int:
    """Returns the sum of a tensor's bits as 32-bit integers."""
    return t.contiguous().view(torch.int).sum().item()
