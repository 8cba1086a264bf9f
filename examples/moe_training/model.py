"""A small transformer over bytes, whose feed-forward layers are mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import tokenyard
from tokenyard.moe import MoE

BYTES = 256


@dataclass(frozen=True)
class Shape:
    """The shape of the model and of its training."""

    window: int = 64
    hidden: int = 64
    heads: int = 4
    layers: int = 2
    experts: int = 16
    topk: int = 2
    inner: int = 128
    rows: int = 16
    """Windows per step over all ranks."""
    rate: float = 0.003
    seed: int = 1


class Block(nn.Module):
    """Causal attention, then a mixture of experts."""

    def __init__(self, shape: Shape, exchange: tokenyard.ExpertParallel, seed: int) -> None:
        super().__init__()
        self._heads = shape.heads
        self.before_attention = nn.LayerNorm(shape.hidden)
        self.mixed = nn.Linear(shape.hidden, 3 * shape.hidden)
        self.out = nn.Linear(shape.hidden, shape.hidden)
        self.before_experts = nn.LayerNorm(shape.hidden)
        self.experts = MoE(exchange, inner=shape.inner, seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        rows, window, hidden = x.shape
        mixed = self.mixed(self.before_attention(x))
        heads = mixed.view(rows, window, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, window, hidden))
        return x + self.experts(self.before_experts(x))


class Model(nn.Module):
    """Predicts the next byte. Its parameters do not depend on the number of ranks."""

    def __init__(self, shape: Shape, exchange: tokenyard.ExpertParallel) -> None:
        super().__init__()
        self.table = nn.Embedding(BYTES, shape.hidden)
        self.places = nn.Parameter(torch.empty(shape.window, shape.hidden))
        self.blocks = nn.ModuleList(
            Block(shape, exchange, seed=1000 * (layer + 1)) for layer in range(shape.layers)
        )
        self.last = nn.LayerNorm(shape.hidden)
        self.scores = nn.Linear(shape.hidden, BYTES)
        # Not torch's own generator: ranks may be threads, which share it.
        generator = torch.Generator().manual_seed(shape.seed)
        for parameter in self.shared_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=parameter.size(-1) ** -0.5, generator=generator)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, letters: Tensor) -> Tensor:
        x = self.table(letters) + self.places
        for block in self.blocks:
            x = block(x)
        return self.scores(self.last(x))

    def expert_parameters(self) -> Iterator[nn.Parameter]:
        """Yields the parameters of this rank's experts."""
        for block in self.blocks:
            assert isinstance(block, Block)
            yield from block.experts.expert_parameters()

    def shared_parameters(self) -> list[nn.Parameter]:
        """Returns the parameters that every rank holds: all but those of experts."""
        own = {id(parameter) for parameter in self.expert_parameters()}
        return [parameter for parameter in self.parameters() if id(parameter) not in own]
