"""The tensors of a checkpoint: their names in Hugging Face's models, and their shapes."""

from __future__ import annotations

import re

from .config import Config

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"

DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Tensors of old checkpoints that follow from the config."""


def layer_at(index: int) -> str:
    """Returns the prefix of the names of a layer's tensors."""
    return f"model.layers.{index}."


def expert_names(config: Config, layer: int) -> list[dict[str, str]]:
    """Returns names of gate, up and down projection per expert; one entry if the layer is dense."""
    at = layer_at(layer)
    if not config.has_experts(layer):
        return [{name: f"{at}mlp.{name}_proj.weight" for name in ("gate", "up", "down")}]
    module = config.family.experts_at
    of_mixtral = dict(gate="w1", up="w3", down="w2")
    of_others = dict(gate="gate_proj", up="up_proj", down="down_proj")
    names = of_mixtral if module == "block_sparse_moe" else of_others
    return [
        {name: f"{at}{module}.experts.{expert}.{theirs}.weight" for name, theirs in names.items()}
        for expert in range(config.num_local_experts)
    ]


def router_name(config: Config, layer: int) -> str:
    return f"{layer_at(layer)}{config.family.experts_at}.gate.weight"


def layout(config: Config) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each tensor of a model, the head included even if it is tied."""
    hidden, vocabulary = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (vocabulary, hidden)}
    for index in range(config.num_hidden_layers):
        shapes |= _of_layer(config, index)
    return shapes | {FINAL_NORM: (hidden,), HEAD: (vocabulary, hidden)}


def _of_layer(config: Config, index: int) -> dict[str, tuple[int, ...]]:
    at, hidden, dim = layer_at(index), config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
    rows = dict(q=queries, k=keys, v=keys)
    shapes: dict[str, tuple[int, ...]] = {f"{at}input_layernorm.weight": (hidden,)}
    shapes |= {f"{at}self_attn.{name}_proj.weight": (count, hidden) for name, count in rows.items()}
    if config.family.has_biases:
        shapes |= {f"{at}self_attn.{name}_proj.bias": (count,) for name, count in rows.items()}
    if config.family.has_norms:
        shapes |= {f"{at}self_attn.{name}_norm.weight": (dim,) for name in "qk"}
    shapes[f"{at}self_attn.o_proj.weight"] = (hidden, queries)
    shapes[f"{at}post_attention_layernorm.weight"] = (hidden,)
    inner = config.intermediate_size
    if config.has_experts(index):
        inner = config.moe_intermediate_size
        shapes[router_name(config, index)] = (config.num_local_experts, hidden)
    for names in expert_names(config, index):
        shapes |= {names["gate"]: (inner, hidden), names["up"]: (inner, hidden)}
        shapes[names["down"]] = (hidden, inner)
    return shapes
