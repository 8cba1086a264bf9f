"""A Llama-shaped decoder in torch: a step of sequences side by side, all of it one CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Llama-3.2-1B's, unless told otherwise."""

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
        """Query heads of a KV head."""
        return self.query_heads // self.kv_heads


@dataclass
class Layer:
    """Rows of Q, K and V together, and of gate and up, so that each is one product."""

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
    """Of a scale at which activations neither vanish nor explode."""
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
    """Greedy, sequences side by side. What changes from step to step lies in tensors that stay."""

    def __init__(
        self, shape: Shape, weights: Weights, positions_max: int, sequences: int = 1
    ) -> None:
        self.shape, self.weights = shape, weights
        device, dtype = weights.embedding.device, weights.embedding.dtype
        cache = (sequences, shape.kv_heads, positions_max, shape.head_dim)

        # A tensor a layer: where a cache is part of a larger tensor, a compiled step copies it.
        def caches() -> list[torch.Tensor]:
            return [torch.zeros(cache, device=device, dtype=dtype) for _ in range(shape.layers)]

        self.keys, self.values = caches(), caches()
        self.sequence = torch.arange(sequences, device=device)
        self.token = torch.zeros_like(self.sequence)
        self.position = torch.zeros_like(self.sequence)
        # By position: how it is rotated, and that what later ones hold counts for nothing.
        half = torch.arange(shape.head_dim // 2) / (shape.head_dim // 2)
        turns = torch.pow(torch.tensor(shape.rope_base), -half).to(device)
        angle = torch.arange(positions_max, device=device)[:, None] * turns
        self.cosine = torch.cat([angle.cos(), angle.cos()], -1).to(dtype)
        self.sine = torch.cat([-angle.sin(), angle.sin()], -1).to(dtype)
        later = torch.full((positions_max, positions_max), -torch.inf, device=device, dtype=dtype)
        self.masks = later.triu(1)
        self._graph: Any = None

    def rewind(self, first: int, position: int) -> None:
        """All sequences to the position, with neighbouring tokens from `first` on."""
        self.token.copy_(self.sequence + first)
        self.position.fill_(position)

    @torch.no_grad()
    def step(self) -> torch.Tensor:
        """Each sequence from its token to the next one. Logits: [sequences, vocabulary]."""
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
        # Query heads of a KV head as rows of one matrix: nothing of the cache is repeated.
        q = q.view(len(x), shape.kv_heads, shape.group, -1)
        out = functional.scaled_dot_product_attention(q, self.keys[index], self.values[index], mask)
        return functional.linear(out.reshape(len(x), -1), layer.out)

    def capture(self, compiled: bool = False) -> None:
        """From now on `replay` takes a step. Warms up, which moves on."""
        if compiled:
            torch.compiler.reset()  # Sizes that differ from another decoder's would become dynamic.
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
        """The step's logits, until the next one."""
        self._graph.replay()
        return self._logits


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    return x * cosine + torch.roll(x, x.shape[-1] // 2, -1) * sine
