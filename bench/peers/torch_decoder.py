"""A Llama-shaped decoder in torch: a step of a batch of sequences as one CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The shape of a model; by default Llama-3.2-1B's."""

    vocabulary: int = 128256
    hidden: int = 2048
    layers: int = 16
    query_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 64
    inner: int = 8192
    epsilon: float = 1e-5
    rope_base: float = 500000.0

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.query_heads // self.kv_heads


@dataclass
class Layer:
    """A layer's weights, with Q, K and V, and gate and up, fused to one matrix each."""

    attention_norm: torch.Tensor  # [hidden]
    qkv: torch.Tensor  # [(query heads, KV heads, KV heads) * dim, hidden]
    out: torch.Tensor  # [hidden, query heads * dim]
    mlp_norm: torch.Tensor  # [hidden]
    gate_up: torch.Tensor  # [gate, up] each [inner, hidden]
    down: torch.Tensor  # [hidden, inner]


@dataclass
class Weights:
    embedding: torch.Tensor  # [vocabulary, hidden]
    layers: list[Layer]
    final_norm: torch.Tensor  # [hidden]
    head: torch.Tensor  # [vocabulary, hidden]

    def to(self, dtype: torch.dtype) -> Weights:
        layers = [Layer(**{k: v.to(dtype) for k, v in vars(w).items()}) for w in self.layers]
        return Weights(
            self.embedding.to(dtype), layers, self.final_norm.to(dtype), self.head.to(dtype)
        )


def random_weights(shape: Shape, device: str, seed: int = 3) -> Weights:
    """Draws weights at a scale at which activations neither vanish nor explode."""
    drawing = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=drawing, device=device)

    def matrix(rows: int, inputs: int) -> torch.Tensor:
        return (normal(rows, inputs) * inputs**-0.5).bfloat16()

    def norm() -> torch.Tensor:
        return (1 + 0.1 * normal(shape.hidden)).bfloat16()

    columns = shape.query_heads * shape.head_dim
    rows = columns + 2 * shape.kv_heads * shape.head_dim
    layers = [
        Layer(
            attention_norm=norm(),
            qkv=matrix(rows, shape.hidden),
            out=matrix(shape.hidden, columns),
            mlp_norm=norm(),
            gate_up=matrix(2 * shape.inner, shape.hidden),
            down=matrix(shape.hidden, shape.inner),
        )
        for _ in range(shape.layers)
    ]
    embedding = normal(shape.vocabulary, shape.hidden).bfloat16()
    return Weights(embedding, layers, norm(), matrix(shape.vocabulary, shape.hidden))


class Decoder:
    """Greedy decoding of a batch. State that changes between steps is in fixed tensors."""

    def __init__(
        self, shape: Shape, weights: Weights, positions_max: int, sequences: int = 1
    ) -> None:
        self.shape, self.weights = shape, weights
        device, dtype = weights.embedding.device, weights.embedding.dtype
        cache = (sequences, shape.kv_heads, positions_max, shape.head_dim)

        # One tensor per layer: a compiled step copies a cache that is part of a larger tensor.
        def caches() -> list[torch.Tensor]:
            return [torch.zeros(cache, device=device, dtype=dtype) for _ in range(shape.layers)]

        self.keys, self.values = caches(), caches()
        self.sequence = torch.arange(sequences, device=device)
        self.token = torch.zeros_like(self.sequence)
        self.position = torch.zeros_like(self.sequence)
        # By position: its rotation, and the mask of later positions.
        half = torch.arange(shape.head_dim // 2) / (shape.head_dim // 2)
        turns = torch.pow(torch.tensor(shape.rope_base), -half).to(device)
        angle = torch.arange(positions_max, device=device)[:, None] * turns
        self.cosine = torch.cat([angle.cos(), angle.cos()], -1).to(dtype)
        self.sine = torch.cat([-angle.sin(), angle.sin()], -1).to(dtype)
        later = torch.full((positions_max, positions_max), -torch.inf, device=device, dtype=dtype)
        self.masks = later.triu(1)
        self._graph: Any = None

    def rewind(self, first: int, position: int) -> None:
        """Resets all sequences to a position, with first tokens `first`, `first` + 1, ..."""
        self.token.copy_(self.sequence + first)
        self.position.fill_(position)

    @torch.no_grad()
    def step(self) -> torch.Tensor:
        """Advances each sequence by one token; returns logits [sequences, vocabulary]."""
        mask = self.masks[self.position][:, None, None].expand(-1, -1, self.shape.group, -1)
        turn = self.cosine[self.position][:, None], self.sine[self.position][:, None]
        x = self.weights.embedding[self.token]
        for index, layer in enumerate(self.weights.layers):
            x = x + self._attention(index, layer, self._norm(x, layer.attention_norm), turn, mask)
            gate, up = functional.linear(self._norm(x, layer.mlp_norm), layer.gate_up).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, layer.down)
        logits = functional.linear(self._norm(x, self.weights.final_norm), self.weights.head)
        self.token.copy_(logits.argmax(-1))
        self.position.add_(1)
        return logits

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (self.shape.hidden,), weight, self.shape.epsilon)

    def _attention(
        self,
        index: int,
        layer: Layer,
        x: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
    ) -> torch.Tensor:
        shape = self.shape
        heads = functional.linear(x, layer.qkv).view(len(x), -1, shape.head_dim)
        both, v = heads.split([shape.query_heads + shape.kv_heads, shape.kv_heads], 1)
        q, k = rotated(both, *turn).split([shape.query_heads, shape.kv_heads], 1)
        for cache, new in ((self.keys, k), (self.values, v)):
            cache[index][self.sequence, :, self.position] = new
        # Query heads of a KV head are rows of one matrix, so the cache is not repeated.
        q = q.view(len(x), shape.kv_heads, shape.group, -1)
        out = functional.scaled_dot_product_attention(q, self.keys[index], self.values[index], mask)
        return functional.linear(out.reshape(len(x), -1), layer.out)

    def capture(self, compiled: bool = False) -> None:
        """Captures a step for `replay`. Warms up first, which advances the sequences."""
        if compiled:
            torch.compiler.reset()  # Else sizes of another decoder become dynamic.
        step = torch.compile(self.step, fullgraph=True) if compiled else self.step
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = step()

    def replay(self) -> torch.Tensor:
        """Replays a step; returns its logits, valid until the next one."""
        self._graph.replay()
        return self._logits


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    return x * cosine + torch.roll(x, x.shape[-1] // 2, -1) * sine
