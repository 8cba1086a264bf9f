"""A model's weights: drawn from a seed, or read from a safetensors file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from .config import Config

BF16 = ml_dtypes.bfloat16


@dataclass
class Layer:
    """All BF16."""

    attention_norm: np.ndarray  # [hidden]
    q: np.ndarray  # [heads, dim, hidden]
    k: np.ndarray  # [kv heads, dim, hidden]
    v: np.ndarray  # [kv heads, dim, hidden]
    out: np.ndarray  # [hidden, heads, dim]
    mlp_norm: np.ndarray  # [hidden]
    router: np.ndarray | None  # [experts, hidden]
    gate: np.ndarray  # [experts, intermediate, hidden]; one expert where the model is dense
    up: np.ndarray  # [experts, intermediate, hidden]
    down: np.ndarray  # [experts, hidden, intermediate]


@dataclass
class Weights:
    embedding: np.ndarray  # [vocabulary, hidden]
    layers: list[Layer]
    final_norm: np.ndarray  # [hidden]
    head: np.ndarray  # [vocabulary, hidden]


def random_weights(config: Config, seed: int) -> Weights:
    """Such that activations neither vanish nor explode, and tokens vary."""
    random = np.random.default_rng(seed)

    def matrix(*shape: int, inputs: int) -> np.ndarray:
        return (random.standard_normal(shape, np.float32) / np.sqrt(inputs)).astype(BF16)

    def norm() -> np.ndarray:
        return (1 + 0.1 * random.standard_normal(config.hidden_size, np.float32)).astype(BF16)

    hidden, dim = config.hidden_size, config.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    inner, experts = config.intermediate_size, max(config.num_local_experts, 1)
    layers = [
        Layer(
            attention_norm=norm(),
            q=matrix(heads, dim, hidden, inputs=hidden),
            k=matrix(kv_heads, dim, hidden, inputs=hidden),
            v=matrix(kv_heads, dim, hidden, inputs=hidden),
            out=matrix(hidden, heads, dim, inputs=heads * dim),
            mlp_norm=norm(),
            router=matrix(experts, hidden, inputs=hidden) if config.num_local_experts else None,
            gate=matrix(experts, inner, hidden, inputs=hidden),
            up=matrix(experts, inner, hidden, inputs=hidden),
            down=matrix(experts, hidden, inner, inputs=inner),
        )
        for _ in range(config.num_hidden_layers)
    ]
    return Weights(
        embedding=matrix(config.vocab_size, hidden, inputs=1),
        layers=layers,
        final_norm=norm(),
        head=matrix(config.vocab_size, hidden, inputs=hidden),
    )


class WeightsError(ValueError):
    """A file that does not hold the model that the config describes."""


def read_weights(path: Path, config: Config) -> Weights:
    """From a file with Llama's names, whose q and k rows rotate by halves as Hugging Face's do; of
    a mixture of experts, with Mixtral's.

    Raises:
        WeightsError: it lacks a tensor, or has one of another shape, or is no such file.
    """
    from safetensors import SafetensorError, safe_open  # Only who has weights needs it.

    try:
        with safe_open(path, framework="numpy") as file:
            return _from_tensors(_Tensors(path, file), config)
    except SafetensorError as error:
        raise WeightsError(f"{path} is not a safetensors file: {error}") from None


class _Tensors:
    """The tensors of an open file, each read when it is asked for."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file = path, file
        self._names = frozenset(file.keys())

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def get(self, name: str, *shape: int) -> np.ndarray:
        if name not in self:
            raise WeightsError(f"{self._path} has no tensor {name}")
        tensor = self._file.get_tensor(name)
        if tensor.shape != shape:
            raise WeightsError(
                f"{self._path}: {name} has the shape {list(tensor.shape)}, and by the config it "
                f"would have {list(shape)}"
            )
        return tensor.astype(BF16)


def _from_tensors(file: _Tensors, config: Config) -> Weights:
    vocabulary, hidden = config.vocab_size, config.hidden_size
    embedding = file.get("model.embed_tokens.weight", vocabulary, hidden)
    tied = "lm_head.weight" not in file
    return Weights(
        embedding=embedding,
        layers=[
            _layer(file, f"model.layers.{index}.", config)
            for index in range(config.num_hidden_layers)
        ],
        final_norm=file.get("model.norm.weight", hidden),
        head=embedding if tied else file.get("lm_head.weight", vocabulary, hidden),
    )


def _layer(file: _Tensors, at: str, config: Config) -> Layer:
    hidden, dim = config.hidden_size, config.head_dim
    experts, inner = config.num_local_experts, config.intermediate_size
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads

    def heads_of(name: str, count: int) -> np.ndarray:
        rows = file.get(f"{at}self_attn.{name}_proj.weight", count * dim, hidden)
        return rows.reshape(count, dim, hidden)

    def of_experts(dense: str, expert: str, *shape: int) -> np.ndarray:
        moe = f"{at}block_sparse_moe.experts"
        names = [f"{moe}.{i}.{expert}.weight" for i in range(experts)]
        return np.stack([file.get(name, *shape) for name in names or [f"{at}mlp.{dense}.weight"]])

    router = f"{at}block_sparse_moe.gate.weight"
    return Layer(
        attention_norm=file.get(at + "input_layernorm.weight", hidden),
        q=heads_of("q", heads),
        k=heads_of("k", kv_heads),
        v=heads_of("v", kv_heads),
        out=file.get(at + "self_attn.o_proj.weight", hidden, heads * dim).reshape(
            hidden, heads, dim
        ),
        mlp_norm=file.get(at + "post_attention_layernorm.weight", hidden),
        router=file.get(router, experts, hidden) if experts else None,
        gate=of_experts("gate_proj", "w1", inner, hidden),
        up=of_experts("up_proj", "w3", inner, hidden),
        down=of_experts("down_proj", "w2", hidden, inner),
    )
