"""The model types that the tasks can do, and how each reads what its config leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Windows(Enum):
    """Which layers attend to a window."""

    NONE = "none"
    ALL = "all, if the config says sliding_window"
    ALL_IF_USED = "all, if use_sliding_window"
    LATER_IF_USED = "those from max_window_layers on, if use_sliding_window"


@dataclass(frozen=True)
class Family:
    """A model type. Defaults are those of Hugging Face's class for its config."""

    architecture: str
    """The class of its language model."""
    reads: frozenset[str]
    """Keys beyond those that every family has."""
    kv_heads: int | None = None
    """None: as many as query heads."""
    head_dim: int | None = None
    """None: the hidden size over the query heads."""
    epsilon: float = 1e-6
    theta: float = 10000.0
    eos: tuple[int, ...] = ()
    windows: Windows = Windows.NONE
    window: int | None = None
    has_biases: bool = False
    """Of the projections to Q, K and V."""
    has_norms: bool = False
    """Of each head of Q and K."""
    experts_at: str | None = None
    """The module of a layer that has the experts, where the family has them."""


WINDOW_KEYS = frozenset({"use_sliding_window", "sliding_window", "max_window_layers"})
FAMILIES = {
    "llama": Family("LlamaForCausalLM", frozenset(), eos=(2,)),
    "mistral": Family(
        "MistralForCausalLM",
        frozenset({"sliding_window"}),
        kv_heads=8,
        eos=(2,),
        windows=Windows.ALL,
        window=4096,
    ),
    "mixtral": Family(
        "MixtralForCausalLM",
        frozenset({"sliding_window", "num_local_experts", "num_experts", "num_experts_per_tok"}),
        kv_heads=8,
        epsilon=1e-5,
        theta=1000000.0,
        eos=(2,),
        windows=Windows.ALL,
        experts_at="block_sparse_moe",
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        WINDOW_KEYS,
        kv_heads=32,
        windows=Windows.LATER_IF_USED,
        window=4096,
        has_biases=True,
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        WINDOW_KEYS,
        kv_heads=32,
        head_dim=128,
        windows=Windows.LATER_IF_USED,
        window=4096,
        has_norms=True,
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        WINDOW_KEYS
        | {"num_local_experts", "num_experts", "num_experts_per_tok", "norm_topk_prob"}
        | {"moe_intermediate_size", "decoder_sparse_step", "mlp_only_layers"},
        kv_heads=4,
        windows=Windows.ALL_IF_USED,
        window=4096,
        has_norms=True,
        experts_at="mlp",
    ),
}
