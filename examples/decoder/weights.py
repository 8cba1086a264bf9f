"""A model's weights in the form that the graphs take."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .config import Config
from .layout import (
    DERIVED,
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    expert_names,
    layer_at,
    layout,
    router_name,
)
from .tensors import Source, WeightsError, listed


@dataclass
class Layer:
    """The weights of a layer, all BF16."""

    attention_norm: np.ndarray  # [hidden]
    q: np.ndarray  # [heads, dim, hidden]
    k: np.ndarray  # [kv heads, dim, hidden]
    v: np.ndarray  # [kv heads, dim, hidden]
    out: np.ndarray  # [hidden, heads, dim]
    mlp_norm: np.ndarray  # [hidden]
    router: np.ndarray | None  # [experts, hidden]
    gate: np.ndarray  # [experts, intermediate, hidden]; one expert if the layer is dense
    up: np.ndarray  # [experts, intermediate, hidden]
    down: np.ndarray  # [experts, hidden, intermediate]
    q_bias: np.ndarray | None = None  # [heads, dim]; all three biases, or none
    k_bias: np.ndarray | None = None  # [kv heads, dim]
    v_bias: np.ndarray | None = None  # [kv heads, dim]
    q_norm: np.ndarray | None = None  # [dim]; both norms, or none
    k_norm: np.ndarray | None = None  # [dim]


@dataclass
class Weights:
    embedding: np.ndarray  # [vocabulary, hidden]
    layers: list[Layer]
    final_norm: np.ndarray  # [hidden]
    head: np.ndarray  # [vocabulary, hidden]


def read_weights(source: Source, config: Config) -> Weights:
    """Reads weights from tensors with the names of the config's family.

    Rows of q and k rotate by halves, as in Hugging Face's models.

    Raises:
        WeightsError: a tensor is missing, unused, or of another shape or dtype. The head may be
            missing if the config ties it to the embedding.
    """
    check_tensors(source, config)
    get = source.get
    embedding = get(EMBEDDING)
    head = get(HEAD) if HEAD in set(source) else embedding
    # Like transformers since version 5: a head that differs from the embedding is used, whatever
    # the config says, which must be wrong then. (Version 4 dropped it.)
    if config.tie_word_embeddings and not np.array_equal(head, embedding):
        warnings.warn(
            f"{source.said_by}: {HEAD} is not {EMBEDDING}, though the config says "
            "tie_word_embeddings true; it is used as it is",
            stacklevel=2,
        )
    layers = [_layer(get, index, config) for index in range(config.num_hidden_layers)]
    return Weights(embedding=embedding, layers=layers, final_norm=get(FINAL_NORM), head=head)


def check_tensors(source: Source, config: Config) -> None:
    """Checks names, shapes and dtypes, without reading tensors.

    Raises:
        WeightsError: as `read_weights`.
    """
    shapes, found = layout(config), set(source)
    missing = shapes.keys() - found
    if config.tie_word_embeddings:
        missing -= {HEAD}
    if missing == {HEAD}:
        raise WeightsError(
            f"{source.said_by} has no tensor {HEAD}, and the config does not say "
            f"tie_word_embeddings true, so {EMBEDDING} does not stand in for it"
        )
    if missing:
        raise WeightsError(
            f"{source.said_by} lacks {listed(missing)}, which a {config.model_type} of this "
            "config has"
        )
    unused = {name for name in found - shapes.keys() if not DERIVED.fullmatch(name)}
    if unused:
        raise WeightsError(
            f"{source.said_by} has {listed(unused)}, which no task uses: a {config.model_type} of "
            "this config has none"
        )
    for name in shapes.keys() & found:
        shape = source.shape_of(name)
        if shape != shapes[name]:
            raise WeightsError(
                f"{source.said_by}: {name} has the shape {list(shape)}, and by the config it "
                f"would have {list(shapes[name])}"
            )


def _layer(get: Callable[[str], np.ndarray], index: int, config: Config) -> Layer:
    at, dim = layer_at(index), config.head_dim
    heads = dict(
        q=config.num_attention_heads, k=config.num_key_value_heads, v=config.num_key_value_heads
    )
    experts = expert_names(config, index)
    layer = Layer(
        attention_norm=get(f"{at}input_layernorm.weight"),
        **{
            name: get(f"{at}self_attn.{name}_proj.weight").reshape(count, dim, -1)
            for name, count in heads.items()
        },
        out=get(f"{at}self_attn.o_proj.weight").reshape(config.hidden_size, -1, dim),
        mlp_norm=get(f"{at}post_attention_layernorm.weight"),
        router=get(router_name(config, index)) if config.has_experts(index) else None,
        **{
            name: np.stack([get(names[name]) for names in experts])
            for name in ("gate", "up", "down")
        },
    )
    if config.family.has_biases:
        layer.q_bias, layer.k_bias, layer.v_bias = (
            get(f"{at}self_attn.{name}_proj.bias").reshape(count, dim)
            for name, count in heads.items()
        )
    if config.family.has_norms:
        layer.q_norm, layer.k_norm = (get(f"{at}self_attn.{name}_norm.weight") for name in "qk")
    return layer
