"""The same model in NumPy, a token at a time: what every graph's tokens are compared with."""

from __future__ import annotations

import numpy as np

from .config import Config
from .weights import BF16, Layer, Weights


class Reference:
    """Decodes greedily, with a KV cache in BF16 as the tasks keep it.

    `rounds_inner`: the feed-forward's inner elements are BF16 too, as `DenseDecoder` has them.
    """

    def __init__(self, config: Config, weights: Weights, *, rounds_inner: bool = False) -> None:
        self.config, self.weights = config, weights
        self.rounds_inner = rounds_inner
        shape = (config.num_hidden_layers, config.num_key_value_heads, config.positions_max)
        self.keys = np.zeros((*shape, config.head_dim), BF16)
        self.values = np.zeros((*shape, config.head_dim), BF16)

    def decode(self, prompt: list[int], count: int, stop: int | None = None) -> list[int]:
        """The prompt and up to `count` more tokens; ends after a stop token."""
        tokens = list(prompt)
        for position in range(len(prompt) + count - 1):
            best = int(np.argmax(self.logits(tokens[position], position)))
            if position + 1 < len(prompt):
                continue
            tokens.append(best)
            if best == stop:
                break
        return tokens

    def logits(self, token: int, position: int) -> np.ndarray:
        x = self.weights.embedding[token].astype(np.float32)
        for index, layer in enumerate(self.weights.layers):
            x = x + self._attention(layer, index, self._norm(x, layer.attention_norm), position)
            x = x + self._feed_forward(layer, self._norm(x, layer.mlp_norm))
        return _f32(self.weights.head) @ self._norm(x, self.weights.final_norm)

    def _norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        scale = 1 / np.sqrt(np.mean(x * x, dtype=np.float32) + np.float32(self.config.rms_norm_eps))
        return x * _f32(weight) * scale

    def _rotated(self, x: np.ndarray, position: int) -> np.ndarray:
        half = self.config.head_dim // 2
        angle = np.float32(position) * self.config.rope_frequencies()
        cosine, sine = np.cos(angle), np.sin(angle)
        first, second = x[..., :half], x[..., half:]
        return np.concatenate(
            [first * cosine - second * sine, second * cosine + first * sine], axis=-1
        )

    def _attention(self, layer: Layer, index: int, x: np.ndarray, position: int) -> np.ndarray:
        q = self._rotated(_f32(layer.q) @ x, position)
        self.keys[index, :, position] = self._rotated(_f32(layer.k) @ x, position).astype(BF16)
        self.values[index, :, position] = (_f32(layer.v) @ x).astype(BF16)
        keys, values = (_f32(cache[index, :, : position + 1]) for cache in (self.keys, self.values))
        heads = []
        for head, query in enumerate(q):
            kv_head = head // self.config.group
            scores = keys[kv_head] @ (query / np.sqrt(np.float32(self.config.head_dim)))
            weights = np.exp(scores - scores.max())
            heads.append(weights @ values[kv_head] / weights.sum())
        return np.einsum("ihd,hd->i", _f32(layer.out), np.stack(heads))

    def _feed_forward(self, layer: Layer, x: np.ndarray) -> np.ndarray:
        if layer.router is None:
            return self._expert(layer, 0, x)
        scores = _f32(layer.router) @ x
        picks = np.argsort(-scores, kind="stable")[: self.config.num_experts_per_tok]
        weights = np.exp(scores[picks] - scores[picks].max())
        weights /= weights.sum()
        return sum(
            weight * self._expert(layer, pick, x)
            for pick, weight in zip(picks, weights, strict=True)
        )

    def _expert(self, layer: Layer, expert: int, x: np.ndarray) -> np.ndarray:
        gate, up = _f32(layer.gate[expert]) @ x, _f32(layer.up[expert]) @ x
        inner = gate / (1 + np.exp(-gate)) * up
        if self.rounds_inner:
            inner = _f32(inner.astype(BF16))
        return _f32(layer.down[expert]) @ inner


def _f32(weights: np.ndarray) -> np.ndarray:
    return weights.astype(np.float32)
