"""A model's weights: drawn from a seed, or read from safetensors files."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .config import Config
from .tensors import BF16, Tensors, WeightsError

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


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
    """From files with Llama's names, whose q and k rows rotate by halves as Hugging Face's do; of
    a mixture of experts, with Mixtral's.

    Args:
        path: a safetensors file; an index of several, as Hugging Face's
            model.safetensors.index.json; or a folder that has either.

    Raises:
        WeightsError: a tensor is missing or of another shape or dtype, or a file is missing or not
            what it should be. The head may be missing where the config ties it to the embedding.
    """
    return _from_tensors(Tensors(path), config)


def _from_tensors(tensors: Tensors, config: Config) -> Weights:
    vocabulary, hidden = config.vocab_size, config.hidden_size
    embedding = tensors.get(EMBEDDING, vocabulary, hidden)
    return Weights(
        embedding=embedding,
        layers=[
            _layer(tensors, f"model.layers.{index}.", config)
            for index in range(config.num_hidden_layers)
        ],
        final_norm=tensors.get("model.norm.weight", hidden),
        head=_head(tensors, config, embedding),
    )


def _head(tensors: Tensors, config: Config, embedding: np.ndarray) -> np.ndarray:
    """As transformers does since version 5: a head that is there and differs is used, whatever the
    config says, for the config must be wrong. (Version 4 threw it away.) But no head is made up.
    """
    if HEAD not in tensors:
        if config.ties:
            return embedding
        raise WeightsError(
            f"{tensors.said_by} has no tensor {HEAD}, and {config.what_it_says_of_ties()}, so "
            f"{EMBEDDING} does not stand in for it"
        )
    head = tensors.get(HEAD, *embedding.shape)
    if config.ties and not np.array_equal(head, embedding):
        warnings.warn(
            f"{tensors.said_by}: {HEAD} is not {EMBEDDING}, though "
            f"{config.what_it_says_of_ties()}; it is used as it is",
            stacklevel=2,
        )
    return head


def _layer(tensors: Tensors, at: str, config: Config) -> Layer:
    hidden, dim = config.hidden_size, config.head_dim
    experts, inner = config.num_local_experts, config.intermediate_size
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads

    def heads_of(name: str, count: int) -> np.ndarray:
        rows = tensors.get(f"{at}self_attn.{name}_proj.weight", count * dim, hidden)
        return rows.reshape(count, dim, hidden)

    def of_experts(dense: str, expert: str, *shape: int) -> np.ndarray:
        moe = f"{at}block_sparse_moe.experts"
        names = [f"{moe}.{i}.{expert}.weight" for i in range(experts)]
        names = names or [f"{at}mlp.{dense}.weight"]
        return np.stack([tensors.get(name, *shape) for name in names])

    router = f"{at}block_sparse_moe.gate.weight"
    return Layer(
        attention_norm=tensors.get(at + "input_layernorm.weight", hidden),
        q=heads_of("q", heads),
        k=heads_of("k", kv_heads),
        v=heads_of("v", kv_heads),
        out=tensors.get(at + "self_attn.o_proj.weight", hidden, heads * dim).reshape(
            hidden, heads, dim
        ),
        mlp_norm=tensors.get(at + "post_attention_layernorm.weight", hidden),
        router=tensors.get(router, experts, hidden) if experts else None,
        gate=of_experts("gate_proj", "w1", inner, hidden),
        up=of_experts("up_proj", "w3", inner, hidden),
        down=of_experts("down_proj", "w2", hidden, inner),
    )
