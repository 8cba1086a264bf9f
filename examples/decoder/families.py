"""The supported model types, and the defaults of keys that their configs omit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Windows(Enum):
    """The rule by which layers have a window."""

    NONE = "none"
    ALL = "all, if the config says sliding_window"
    ALL_IF_USED = "all, if use_sliding_window"
    LATER_IF_USED = "those from max_window_layers on, if use_sliding_window"


@dataclass(frozen=True)
class Family:
    """A model type, with the defaults of Hugging Face's class for its config."""

    architecture: str
    """Name of Hugging Face's class of its language model."""
    reads: frozenset[str]
    """Keys beyond those of every family."""
    kv_heads: int | None = None
    """Default number of KV heads; None: as many as query heads."""
    head_dim: int | None = None
    """Default head dimension; None: hidden size / query heads."""
    epsilon: float = 1e-6
    theta: float = 10000.0
    eos: tuple[int, ...] = ()
    windows: Windows = Windows.NONE
    window: int | None = None
    has_biases: bool = False
    """Whether the projections to Q, K and V have biases."""
    has_norms: bool = False
    """Whether each head of Q and K is normalised."""
    experts_at: str | None = None
    """Name of the module with a layer's experts; None for dense families."""


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
