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


def read_weights(path: Path, config: Config) -> Weights:
    """From a file with Llama's names, whose q and k rows rotate by halves as Hugging Face's do."""
    from safetensors import safe_open  # Only who has weights needs it.

    with safe_open(path, framework="numpy") as file:
        return _from_tensors(_Tensors(file), config)


class _Tensors:
    """The tensors of an open file, by name, each read when it is asked for."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._names = frozenset(file.keys())

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self:
            raise ValueError(f"the weights have no tensor {name}: a Llama model's are expected")
        return self._file.get_tensor(name).astype(BF16)


def _from_tensors(file: _Tensors, config: Config) -> Weights:
    hidden, dim = config.hidden_size, config.head_dim
    layers = []
    for i in range(config.num_hidden_layers):
        at = f"model.layers.{i}."

        def heads_of(name: str, count: int, at: str = at) -> np.ndarray:
            return file[f"{at}self_attn.{name}_proj.weight"].reshape(count, dim, hidden)

        layers.append(
            Layer(
                attention_norm=file[at + "input_layernorm.weight"],
                q=heads_of("q", config.num_attention_heads),
                k=heads_of("k", config.num_key_value_heads),
                v=heads_of("v", config.num_key_value_heads),
                out=file[at + "self_attn.o_proj.weight"].reshape(
                    hidden, config.num_attention_heads, dim
                ),
                mlp_norm=file[at + "post_attention_layernorm.weight"],
                router=None,
                gate=file[at + "mlp.gate_proj.weight"][None],
                up=file[at + "mlp.up_proj.weight"][None],
                down=file[at + "mlp.down_proj.weight"][None],
            )
        )
    embedding = file["model.embed_tokens.weight"]
    tied = "lm_head.weight" not in file
    return Weights(
        embedding=embedding,
        layers=layers,
        final_norm=file["model.norm.weight"],
        head=embedding if tied else file["lm_head.weight"],
    )
