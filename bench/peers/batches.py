"""The tokens to send, drawn alike on every rank, and the expected results."""

from __future__ import annotations

from dataclasses import dataclass

import torch

SETS = 3
"""Number of input sets used in turn, so that no call finds its rows in a cache."""
GROUP = 128
"""Channels per scale."""
DIGITS = 4
"""A row's first channels encode its rank and token in digits that FP8 represents exactly."""
BASE = 16


@dataclass(frozen=True)
class Shape:
    ranks: int
    tokens: int
    hidden: int
    topk: int
    experts: int

    @property
    def local_experts(self) -> int:
        return self.experts // self.ranks


@dataclass(frozen=True)
class Batch:
    """One rank's tokens of one set."""

    shape: Shape
    x: torch.Tensor
    """[tokens, hidden] bfloat16."""
    x_fp8: torch.Tensor
    """[tokens, hidden] float8_e4m3fn."""
    scales: torch.Tensor
    """[tokens, hidden / 128] float32."""
    topk_idx: torch.Tensor
    """[tokens, topk] int64, distinct within a row, uniform over the experts."""
    topk_weights: torch.Tensor
    """[tokens, topk] float32, each row of sum 1."""

    def goes_to(self, rank: int) -> torch.Tensor:
        """Returns [tokens] bool: whether the token has an expert on the rank."""
        return (self.topk_idx // self.shape.local_experts == rank).any(dim=1)

    def ranks_of_each(self) -> torch.Tensor:
        """Returns [tokens] the number of ranks that each token goes to."""
        return sum(self.goes_to(rank).int() for rank in range(self.shape.ranks))  # type: ignore


def draw(shape: Shape, rank: int, number: int, device: torch.device) -> Batch:
    """Draws a set of one rank; the same on every rank if the devices are of one kind."""
    random = torch.Generator(device).manual_seed(1000 * number + rank + 1)
    x = torch.randn(
        shape.tokens, shape.hidden, dtype=torch.bfloat16, device=device, generator=random
    )
    token = torch.arange(shape.tokens, device=device)
    x[:, 0] = rank
    for place in range(1, DIGITS):
        x[:, place] = (token // BASE ** (DIGITS - 1 - place) % BASE).to(x.dtype)
    groups = x.float().view(shape.tokens, -1, GROUP)
    scales = groups.abs().amax(dim=2).clamp(1e-4) / 448
    scales[:, 0] = 1  # Keeps the digits exact.
    x_fp8 = (groups / scales[..., None]).view_as(x).to(torch.float8_e4m3fn)
    scores = torch.rand(shape.tokens, shape.experts, device=device, generator=random)
    topk_idx = scores.topk(shape.topk, dim=1, sorted=False).indices
    weights = torch.rand(shape.tokens, shape.topk, device=device, generator=random) + 0.1
    return Batch(shape, x, x_fp8, scales, topk_idx, weights / weights.sum(dim=1, keepdim=True))


def draw_sets(shape: Shape) -> list[list[Batch]]:
    """Draws every set of every rank on the current GPU."""
    device = torch.device("cuda", torch.cuda.current_device())
    return [
        [draw(shape, rank, number, device) for rank in range(shape.ranks)] for number in range(SETS)
    ]


def names_of(x: torch.Tensor) -> torch.Tensor:
    """Returns [rows] rank * 4096 + token of each row, decoded from its first channels."""
    digits = x[:, :DIGITS].float().long()
    powers = torch.tensor([BASE**place for place in reversed(range(DIGITS))], device=x.device)
    return (digits * powers).sum(dim=1)


def busiest_remote_rows(everybody: list[Batch]) -> int:
    """Returns the largest number of rows that a rank sends to, or receives from, all others."""
    ranks = range(len(everybody))
    rows = [[int(batch.goes_to(rank).sum()) for rank in ranks] for batch in everybody]
    out = [sum(rows[rank]) - rows[rank][rank] for rank in ranks]
    into = [sum(row[rank] for row in rows) - rows[rank][rank] for rank in ranks]
    return max(out + into)
