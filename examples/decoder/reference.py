"""Reference models in NumPy and float64, with which the tokens of every graph are compared.

Shares nothing with the code that builds graphs: it reads config.json and safetensors files by
itself, and computes all positions of a sequence at once, without a cache.

    x      = embedding[token]
    x     += attention(norm(x));  x += feed_forward(norm(x))        of each layer
    logits = head . norm(x)

Weights are rounded to BF16, like those of the graphs; nothing else is rounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Find = Callable[[str], np.ndarray | None]
"""Returns a tensor by name; None if there is none."""

ROWS_AT_A_TIME = 8192
"""Of a matrix, in float64."""

EXPONENT_MAX = 700
"""Of e, in float64."""


class Reference:
    """A model as Hugging Face defines its `model_type`.

    Args:
        said: contents of its config.json.
        find: finds its tensors.
    """

    def __init__(self, said: Mapping[str, Any], find: Find) -> None:
        self.said, self.find = said, find
        self.type: str = said["model_type"]
        self.hidden: int = said["hidden_size"]
        self.heads: int = said["num_attention_heads"]
        self.layers: int = said["num_hidden_layers"]
        defaults = {"mistral": 8, "mixtral": 8, "qwen2": 32, "qwen3": 32, "qwen3_moe": 4}
        self.kv_heads: int = said.get("num_key_value_heads", defaults.get(self.type)) or self.heads
        head_dim = said.get("head_dim", 128 if self.type == "qwen3" else None)
        self.dim: int = head_dim or self.hidden // self.heads
        epsilon = said.get("rms_norm_eps")
        default = 1e-5 if self.type == "mixtral" else 1e-6
        self.epsilon: float = default if epsilon is None else epsilon
        self.angles = self._angles()

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Returns the logits [tokens, vocabulary] after each token."""
        table = self._weight("model.embed_tokens.weight")
        x = _double(table[np.array(tokens)])
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            y = self._norm(x, at + "input_layernorm.weight")
            x = x + self._attention(y, at + "self_attn.", self._window(layer))
            y = self._norm(x, at + "post_attention_layernorm.weight")
            x = x + (
                self._mixture(y, at) if self._is_sparse(layer) else self._mlp(y, at + "mlp.{}_proj")
            )
        y = self._norm(x, "model.norm.weight")
        tied = self.find("lm_head.weight") is None and self.said.get("tie_word_embeddings")
        return _product(y, table if tied else self._weight("lm_head.weight"))

    # Reading the config.

    def stop_tokens(self) -> list[int]:
        """Returns the tokens that end an answer."""
        unsaid = 2 if self.type in ("llama", "mistral", "mixtral") else None
        eos = self.said.get("eos_token_id", unsaid)
        return [] if eos is None else list(eos) if isinstance(eos, list) else [eos]

    def _angles(self) -> np.ndarray:
        """Returns [dim / 2] the angle per position of each pair of elements."""
        rope = self.said.get("rope_parameters") or self.said.get("rope_scaling") or {}
        rope = rope.get("full_attention", rope)
        unsaid = 1e6 if self.type == "mixtral" else 1e4
        base = float(rope.get("rope_theta") or self.said.get("rope_theta") or unsaid)
        angles = base ** (-2.0 * np.arange(self.dim // 2) / self.dim)
        if rope.get("rope_type", rope.get("type")) != "llama3":
            return angles
        # Wavelengths longer than the training context / `low` are stretched by the factor, those
        # shorter than the context / `high` are unchanged; in between it is interpolated.
        trained = rope["original_max_position_embeddings"]
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        lengths = 2 * np.pi / angles
        smooth = (trained / lengths - low) / (high - low)
        between = (1 - smooth) * angles / rope["factor"] + smooth * angles
        stretched = np.where(lengths > trained / low, angles / rope["factor"], between)
        return np.where(lengths < trained / high, angles, stretched)

    def _window(self, layer: int) -> int | None:
        """Returns the positions that a token attends to, its own included; None for all."""
        said = self.said
        size = said.get("sliding_window", None if self.type == "mixtral" else 4096)
        if self.type == "llama":
            return None
        if self.type in ("mistral", "mixtral"):
            return size
        if not said.get("use_sliding_window"):
            return None
        if self.type == "qwen3_moe":
            return size
        types = said.get("layer_types")
        if types is not None:
            return size if types[layer] == "sliding_attention" else None
        first = said.get("max_window_layers")
        return size if layer >= (28 if first is None else first) else None

    def _is_sparse(self, layer: int) -> bool:
        if self.type == "mixtral":
            return True
        if self.type != "qwen3_moe" or layer in (self.said.get("mlp_only_layers") or []):
            return False
        return (layer + 1) % (self.said.get("decoder_sparse_step") or 1) == 0

    # The model.

    def _weight(self, name: str) -> np.ndarray:
        found = self.find(name)
        if found is None:
            raise KeyError(name)
        return found

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        mean = np.mean(np.square(x), axis=-1, keepdims=True)
        return _double(self._weight(name)) * x / np.sqrt(mean + self.epsilon)

    def _projected(self, x: np.ndarray, name: str, heads: int) -> np.ndarray:
        """[tokens, heads, dim]"""
        y = _product(x, self._weight(f"{name}.weight"))
        if self.type == "qwen2":
            y = y + _double(self._weight(f"{name}.bias"))
        return y.reshape(len(x), heads, self.dim)

    def _turned(self, x: np.ndarray) -> np.ndarray:
        """Rotates each head of each position, as a vector of complex numbers."""
        turns = np.exp(1j * np.arange(len(x))[:, None, None] * self.angles)
        half = self.dim // 2
        turned = (x[..., :half] + 1j * x[..., half:]) * turns
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def _attention(self, x: np.ndarray, at: str, window: int | None) -> np.ndarray:
        q = self._projected(x, at + "q_proj", self.heads)
        k = self._projected(x, at + "k_proj", self.kv_heads)
        v = self._projected(x, at + "v_proj", self.kv_heads)
        if self.type in ("qwen3", "qwen3_moe"):
            q, k = self._norm(q, at + "q_norm.weight"), self._norm(k, at + "k_norm.weight")
        q, k = self._turned(q), self._turned(k)
        distance = np.arange(len(x))[:, None] - np.arange(len(x))
        seen = (distance >= 0) & (distance < (len(x) if window is None else window))
        out = np.empty_like(q)
        for head in range(self.heads):
            of = head * self.kv_heads // self.heads
            scores = np.where(seen, q[:, head] @ k[:, of].T / np.sqrt(self.dim), -np.inf)
            out[:, head] = _softmax(scores) @ v[:, of]
        return _product(out.reshape(len(x), -1), self._weight(at + "o_proj.weight"))

    def _mlp(
        self, x: np.ndarray, names: str, gate: str = "gate", up: str = "up", down: str = "down"
    ) -> np.ndarray:
        g = _product(x, self._weight(names.format(gate) + ".weight"))
        u = _product(x, self._weight(names.format(up) + ".weight"))
        gated = g * u / (1 + np.exp(np.minimum(-g, EXPONENT_MAX)))
        return _product(gated, self._weight(names.format(down) + ".weight"))

    def _mixture(self, x: np.ndarray, at: str) -> np.ndarray:
        mixtral = self.type == "mixtral"
        module = at + ("block_sparse_moe." if mixtral else "mlp.")
        names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
        shares = _softmax(_product(x, self._weight(module + "gate.weight")))
        y = np.zeros_like(x)
        for token, share in enumerate(shares):
            picked = np.argsort(-share, kind="stable")[: self.said["num_experts_per_tok"]]
            total = share[picked].sum() if mixtral or self.said.get("norm_topk_prob") else 1
            for expert in picked:
                one = self._mlp(x[token : token + 1], f"{module}experts.{expert}.{{}}", *names)
                y[token] += share[expert] / total * one[0]
        return y


def _double(weights: np.ndarray) -> np.ndarray:
    """Returns weights rounded to BF16, as float64."""
    bits = np.ascontiguousarray(weights, np.float32).view(np.uint32)
    # Round to nearest, ties to even.
    nearest = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return (nearest & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def _product(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    parts = [
        x @ _double(rows[first : first + ROWS_AT_A_TIME]).T
        for first in range(0, len(rows), ROWS_AT_A_TIME)
    ]
    return np.concatenate(parts, axis=-1)


def _softmax(x: np.ndarray) -> np.ndarray:
    shares = np.exp(x - x.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def stored(path: Path) -> Find:
    """Finds tensors in a safetensors file, or in all files of a folder.

    A file consists of the length of its header in 8 bytes; the header, with dtype, shape and
    position of each tensor; and the tensors' bytes.
    """
    folder = path.parent if path.name.endswith(".index.json") else path
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [path]
    where: dict[str, tuple[Path, int, dict[str, Any]]] = {}
    for file in files:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        where |= {name: (file, 8 + length, about) for name, about in header.items()}

    def find(name: str) -> np.ndarray | None:
        if name not in where:
            return None
        file, begin, about = where[name]
        kind = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "F64": "<f8"}[about["dtype"]]
        first, end = about["data_offsets"]
        values: np.ndarray = np.memmap(
            file, kind, "r", begin + first, (end - first) // int(kind[-1])
        )
        if about["dtype"] == "BF16":
            values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return np.asarray(values).reshape(about["shape"])

    return find
