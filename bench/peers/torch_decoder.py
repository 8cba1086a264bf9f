"""A Llama-shaped decoder in torch: a token a step, with a cache that stays, in one CUDA graph."""

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
    """Greedy, one sequence. All that changes from step to step lies in tensors that stay."""

    def __init__(self, shape: Shape, weights: Weights, positions_max: int) -> None:
        self.shape, self.weights = shape, weights
        device, dtype = weights.embedding.device, weights.embedding.dtype
        cache = (shape.layers, 1, shape.kv_heads, positions_max, shape.head_dim)
        self.keys = torch.zeros(cache, device=device, dtype=dtype)
        self.values = torch.zeros(cache, device=device, dtype=dtype)
        self.token = torch.zeros(1, device=device, dtype=torch.int64)
        self.position = torch.zeros(1, device=device, dtype=torch.int64)
        self.logits = torch.zeros(shape.vocabulary, device=device, dtype=dtype)
        self.all_positions = torch.arange(positions_max, device=device)
        half = torch.arange(shape.head_dim // 2, device=device) / (shape.head_dim // 2)
        angle = self.all_positions[:, None] * torch.pow(torch.tensor(shape.rope_base), -half.cpu()
                                                        ).to(device)  # fmt: skip
        self.cosine = torch.cat([angle.cos(), angle.cos()], -1).to(dtype)
        self.sine = torch.cat([-angle.sin(), angle.sin()], -1).to(dtype)
        self._graph: Any = None

    def rewind(self, token: int, position: int) -> None:
        self.token.fill_(token)
        self.position.fill_(position)

    @torch.no_grad()
    def step(self) -> None:
        """From the token at the position to the next one."""
        shape = self.shape
        # What the positions beyond this one hold counts for nothing.
        mask = torch.where(self.all_positions <= self.position, 0.0, -torch.inf)
        mask = mask.to(self.keys.dtype).expand(1, 1, shape.group, -1)
        x = self.weights.embedding[self.token]
        for index, layer in enumerate(self.weights.layers):
            x = x + self._attention(index, layer, self._norm(x, layer.attention_norm), mask)
            gate, up = functional.linear(self._norm(x, layer.mlp_norm), layer.gate_up).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, layer.down)
        logits = functional.linear(self._norm(x, self.weights.final_norm), self.weights.head)
        self.logits.copy_(logits[0])
        self.token.copy_(logits.argmax(-1))
        self.position.add_(1)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (self.shape.hidden,), weight, self.shape.epsilon)

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        other = torch.roll(x, self.shape.head_dim // 2, -1)
        return x * self.cosine[self.position] + other * self.sine[self.position]

    def _attention(
        self, index: int, layer: Layer, x: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        shape = self.shape
        heads = functional.linear(x, layer.qkv).view(-1, shape.head_dim)
        both, v = heads.split([shape.query_heads + shape.kv_heads, shape.kv_heads])
        q, k = self._rotated(both).split([shape.query_heads, shape.kv_heads])
        for cache, new in ((self.keys, k), (self.values, v)):
            cache[index].index_copy_(2, self.position, new.view(1, shape.kv_heads, 1, -1))
        # Query heads of a KV head as rows of one matrix: nothing of the cache is repeated.
        out = functional.scaled_dot_product_attention(
            q.view(1, shape.kv_heads, shape.group, -1), self.keys[index], self.values[index], mask
        )
        return functional.linear(out.reshape(1, -1), layer.out)

    def capture(self, compiled: bool = False) -> None:
        """From now on `replay` takes a step. Warms up, which moves on."""
        step = torch.compile(self.step, fullgraph=True) if compiled else self.step
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            step()

    def replay(self) -> None:
        self._graph.replay()
