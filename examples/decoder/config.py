"""The shape of a model, as Hugging Face's config.json tells it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

EXPERTS_PER_TOKEN_MAX = 8
"""That a task picks at most."""

TIED_UNLESS_SAID = ("cohere", "ernie4_5", "gemma", "gemma2", "smollm3")
"""Model types with Llama's names whose head Hugging Face ties to the embedding unless told."""


@dataclass(frozen=True)
class RopeScaling:
    """How Llama 3 stretches what turns slowly, for contexts longer than it was trained with."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class Config:
    """Names are those of config.json, where there is one."""

    vocab_size: int = 256
    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 16
    intermediate_size: int = 128
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    num_local_experts: int = 0
    """0: a dense feed-forward."""
    num_experts_per_tok: int = 2
    model_type: str = "llama"
    tie_word_embeddings: bool | None = None
    """None: it does not say."""
    page_tokens: int = 8
    """Positions of a page of the KV cache."""
    positions_max: int = 64

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def ties(self) -> bool:
        """Whether the head is the embedding, as Hugging Face understands the config."""
        if self.tie_word_embeddings is None:
            return self.model_type in TIED_UNLESS_SAID
        return self.tie_word_embeddings

    def what_it_says_of_ties(self) -> str:
        """For errors."""
        means = "true" if self.ties else "false"
        if self.tie_word_embeddings is not None:
            return f"the config says tie_word_embeddings {means}"
        return (
            f"the config says nothing of tie_word_embeddings, which means {means} for a model of "
            f"type {self.model_type!r}"
        )

    def rope_frequencies(self) -> np.ndarray:
        """[head_dim / 2] float32: by which angle each pair of elements turns from one position to
        the next."""
        half = self.head_dim // 2
        steps = np.arange(half, dtype=np.float32) / np.float32(half)
        plain = np.float32(self.rope_theta) ** -steps
        scaling = self.rope_scaling
        if scaling is None:
            return plain
        turns = scaling.original_max_position_embeddings * plain / np.float32(2 * np.pi)
        low, high = np.float32(scaling.low_freq_factor), np.float32(scaling.high_freq_factor)
        kept = np.clip((turns - low) / (high - low), 0, 1)
        return (kept + (1 - kept) / np.float32(scaling.factor)) * plain

    def check(self, ranks: int) -> None:
        """Raises ValueError naming what cannot be."""
        for name, value in vars(self).items():
            if type(value) is int and value < 1 and name != "num_local_experts":
                raise ValueError(f"{name} must be at least 1, not {value}")
        experts = self.num_local_experts
        picks = min(experts, EXPERTS_PER_TOKEN_MAX)
        rules = {
            "hidden_size must be a multiple of 8": self.hidden_size % 8 == 0,
            "num_attention_heads must be a multiple of num_key_value_heads":
                self.num_attention_heads % self.num_key_value_heads == 0,
            f"num_key_value_heads must be a multiple of the {ranks} ranks, which "
            f"{self.num_key_value_heads} is not":
                self.num_key_value_heads % ranks == 0,
            f"intermediate_size must be a multiple of 8 times the {ranks} ranks, which "
            f"{self.intermediate_size} is not":
                self.intermediate_size % (8 * ranks) == 0,
            f"vocab_size must be a multiple of the {ranks} ranks, which {self.vocab_size} is not":
                self.vocab_size % ranks == 0,
            "head_dim must be even and at most 128":
                self.head_dim % 2 == 0 and self.head_dim <= 128,
            f"--positions must be a multiple of a page's {self.page_tokens} (page_tokens)":
                self.positions_max % self.page_tokens == 0,
            "num_local_experts must be at least 0": experts >= 0,
            f"of {experts} experts a token picks at most {picks}, not {self.num_experts_per_tok}":
                experts == 0 or self.num_experts_per_tok <= picks,
        }  # fmt: skip
        for rule, kept in rules.items():
            if not kept:
                raise ValueError(rule)


NEEDED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)


def read_config(path: Path, **others: int) -> Config:
    """From a config.json; `others` are what such a file does not say.

    Raises:
        ValueError: it says too little, or what the tasks cannot do.
    """
    try:
        said = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise ValueError(f"{path} does not hold an object")
    said = {name: value for name, value in said.items() if value is not None}
    missing = [name for name in NEEDED if name not in said]
    if missing:
        raise ValueError(f"{path} does not say {' and '.join(missing)}")
    known = {
        name: _value(path, name, said[name], KINDS[kind])
        for name, kind in Config.__annotations__.items()
        if name in said and kind in KINDS
    }
    heads = known["num_attention_heads"]
    known.setdefault("num_key_value_heads", heads)
    known.setdefault("head_dim", known["hidden_size"] // max(heads, 1))
    _refuse_others(path, said)
    return Config(**{**known, "rope_scaling": _scaling(path, said), **others})


@dataclass(frozen=True)
class Kind:
    """Of a config's values."""

    name: str
    types: tuple[type, ...]


KINDS = {
    "int": Kind("a number", (int,)),
    "float": Kind("a number", (int, float)),
    "str": Kind("a string", (str,)),
    "bool | None": Kind("true or false", (bool,)),
}
"""By annotation."""


def _value(path: Path, name: str, value: Any, kind: Kind) -> Any:
    if type(value) not in kind.types:
        raise ValueError(f"{path}: {name} must be {kind.name}, not {value!r}")
    return value


def _scaling(path: Path, said: dict[str, Any]) -> RopeScaling | None:
    scaling = said.get("rope_scaling") or {"rope_type": "default"}
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else None
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(
            f"{path}: rope_scaling of type {kind!r} is not among what the tasks can do"
        )
    names = RopeScaling.__annotations__
    missing = [name for name in names if name not in scaling]
    if missing:
        raise ValueError(f"{path}: rope_scaling does not say {' and '.join(missing)}")
    numbers = {name: _value(path, name, scaling[name], KINDS[names[name]]) for name in names}
    if not 0 < numbers["low_freq_factor"] < numbers["high_freq_factor"] or numbers["factor"] <= 0:
        raise ValueError(f"{path}: rope_scaling's factors are positive, the high one above the low")
    return RopeScaling(**numbers)


def _refuse_others(path: Path, said: dict[str, Any]) -> None:
    """What would be another model with the same sizes."""
    plain = dict(hidden_act="silu", attention_bias=False, mlp_bias=False)
    for name, value in plain.items():
        if said.get(name, value) != value:
            raise ValueError(f"{path}: {name} {said[name]!r} is not among what the tasks can do")
