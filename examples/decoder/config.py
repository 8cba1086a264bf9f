"""The shape of a model, read from Hugging Face's config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .families import FAMILIES, Family, Windows
from .keys import complaints
from .rope import RopeScaling, rotation
from .values import ConfigError, checked, checked_list

EXPERTS_PER_TOKEN_MAX, GROUP_MAX, COLUMNS_MAX, STOP_TOKENS_MAX = 8, 16, 8192, 8
LAYERS_MAX = 4096
"""Limits of the tasks and their graphs."""

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Config:
    """The shape of a model. Fields have config.json's names if it has them."""

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
    """Number of experts; 0: a dense feed-forward."""
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 0
    """Inner elements per expert."""
    norm_topk_prob: bool = True
    """Whether the weights of a token's experts are normalised to sum 1."""
    dense_layers: frozenset[int] = frozenset()
    """Indices of layers without experts in a model with experts."""
    windows: tuple[int | None, ...] = ()
    """[layers] latest positions that a token attends to; all if None, or for missing layers."""
    model_type: str = "llama"
    tie_word_embeddings: bool = False
    eos_token_id: tuple[int, ...] = ()
    max_position_embeddings: int | None = None
    page_tokens: int = 8
    """Positions per page of the KV cache."""
    positions_max: int = 64

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.num_attention_heads // self.num_key_value_heads

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if layer < len(self.windows) else None

    def has_experts(self, layer: int) -> bool:
        return self.num_local_experts > 0 and layer not in self.dense_layers

    def rope_frequencies(self) -> np.ndarray:
        """Returns [head_dim / 2] float32: the angle per position of each pair of elements."""
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
        """Raises ConfigError if the tasks do not support this shape."""
        counts = (*("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
                  *("num_key_value_heads", "head_dim", "intermediate_size", "num_experts_per_tok"),
                  *("page_tokens", "positions_max"))  # fmt: skip
        for name in counts:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        most = self.max_position_embeddings
        if most is not None and self.positions_max > most:
            raise ConfigError(
                f"--positions: the model has {most} (max_position_embeddings), not "
                f"{self.positions_max}"
            )
        experts = self.num_local_experts
        picks = min(experts, EXPERTS_PER_TOKEN_MAX)
        inner = {"intermediate_size": self.intermediate_size}
        if experts:
            inner["moe_intermediate_size"] = self.moe_intermediate_size
        rules = {
            "hidden_size must be a multiple of 8": self.hidden_size % 8 == 0,
            "num_attention_heads must be a multiple of num_key_value_heads":
                self.num_attention_heads % self.num_key_value_heads == 0,
            f"num_key_value_heads must be a multiple of the {ranks} ranks, which "
            f"{self.num_key_value_heads} is not":
                self.num_key_value_heads % ranks == 0,
            f"vocab_size must be a multiple of the {ranks} ranks, which {self.vocab_size} is not":
                self.vocab_size % ranks == 0,
            "head_dim must be even and at most 128":
                self.head_dim % 2 == 0 and self.head_dim <= 128,
            "all query heads of a KV head together must have a multiple of 8 elements":
                self.group * self.head_dim % 8 == 0,
            f"--positions must be a multiple of a page's {self.page_tokens} (page_tokens)":
                self.positions_max % self.page_tokens == 0,
            "num_local_experts must be at least 0": experts >= 0,
            f"of {experts} experts a token picks at most {picks}, not {self.num_experts_per_tok}":
                experts == 0 or self.num_experts_per_tok <= picks,
        } | {
            f"{name} must be a multiple of 8 times the {ranks} ranks, which {size} is not":
                size > 0 and size % (8 * ranks) == 0
            for name, size in inner.items()
        }  # fmt: skip
        _require(rules)

    def check_tiles(self, ranks: int) -> None:
        """Raises ConfigError if the graph of tiles does not support this shape; see `check`."""
        attended = self.num_attention_heads * self.head_dim // ranks
        inner = self.intermediate_size // ranks
        is_dense = not all(self.has_experts(layer) for layer in range(self.num_hidden_layers))
        _require({
            f"hidden_size may be up to {COLUMNS_MAX}, not {self.hidden_size}":
                self.hidden_size <= COLUMNS_MAX,
            f"a rank's heads may have up to {COLUMNS_MAX} elements together, not {attended}":
                attended <= COLUMNS_MAX,
            f"a rank's part of intermediate_size may be up to {COLUMNS_MAX}, not {inner}; more "
            "--ranks share it":
                inner <= COLUMNS_MAX or not is_dense,
            f"a KV head may have up to {GROUP_MAX} query heads, not {self.group}":
                self.group <= GROUP_MAX,
        })  # fmt: skip


def _require(rules: dict[str, bool]) -> None:
    """Raises ConfigError with the first broken rule."""
    for rule, kept in rules.items():
        if not kept:
            raise ConfigError(rule)


SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    "intermediate_size",
)


def toy(experts: int = 0) -> dict[str, Any]:
    """Returns the contents of a config.json for the tiny model."""
    plain = Config()
    names = (*SIZES, "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta")
    said = {name: getattr(plain, name) for name in names} | {"eos_token_id": None}
    if not experts:
        return {"model_type": "llama", **said}
    picks = {"num_local_experts": experts, "num_experts_per_tok": plain.num_experts_per_tok}
    return {"model_type": "mixtral", **said, **picks}


def said_in(path: Path) -> dict[str, Any]:
    """Returns the object in a config.json.

    Raises:
        ConfigError: the file is not JSON, or holds no object.
    """
    try:
        said = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise ConfigError(f"{path} does not hold an object")
    return said


def config_of(said: Mapping[str, Any], where: str, **others: Any) -> Config:
    """Returns the shape that a config describes.

    Args:
        where: prefix of errors.
        others: fields that a config does not have.

    Raises:
        ConfigError: it lacks keys, or the tasks do not support it.
    """
    try:
        return _config_of(said, **others)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _config_of(said: Mapping[str, Any], **others: Any) -> Config:
    kind = _or(said, "model_type", str, None)
    family = FAMILIES.get(kind)
    faults = list(complaints(said, family))
    if kind is not None and family is None:
        faults.insert(0, f"model_type {kind!r} is none of {', '.join(FAMILIES)}")
    missing = [name for name in ("model_type", *SIZES) if said.get(name) is None]
    if missing:
        faults.append(f"it does not say {' and '.join(missing)}")
    if family is not None and said.get("architectures"):
        names = checked_list("architectures", said["architectures"], str)
        if family.architecture.lower() not in [name.lower() for name in names]:
            faults.append(f"architectures {names} lack {family.architecture}")
    if faults or family is None:
        raise ConfigError("; ".join(faults))
    sizes = {name: checked(name, said[name], int) for name in SIZES}
    heads, layers = sizes["num_attention_heads"], sizes["num_hidden_layers"]
    if not 1 <= layers <= LAYERS_MAX:
        raise ConfigError(f"num_hidden_layers must be from 1 to {LAYERS_MAX}, not {layers}")
    windows = _windows(said, family, layers)
    kinds = {FULL if window is None else SLIDING for window in windows}
    theta, scaling = rotation(said, family.theta, kinds)
    epsilon = _or(said, "rms_norm_eps", float, family.epsilon)
    if epsilon < 0:
        raise ConfigError(f"rms_norm_eps must be at least 0, not {epsilon!r}")
    return Config(
        **sizes,
        num_key_value_heads=_or_if_missing(
            said, "num_key_value_heads", heads, family.kv_heads or heads
        ),
        head_dim=_or_if_missing(
            said,
            "head_dim",
            sizes["hidden_size"] // max(heads, 1),
            family.head_dim or sizes["hidden_size"] // max(heads, 1),
        ),
        rms_norm_eps=epsilon,
        rope_theta=theta,
        rope_scaling=scaling,
        windows=windows,
        model_type=kind,
        tie_word_embeddings=_or(said, "tie_word_embeddings", bool, False),
        eos_token_id=_eos(said, family, sizes["vocab_size"]),
        max_position_embeddings=_or(said, "max_position_embeddings", int, None),
        **_experts(said, family, layers, sizes["intermediate_size"]),
        **others,
    )


def _or(said: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = said.get(name)
    return default if value is None else checked(name, value, kind)


def _or_if_missing(said: Mapping[str, Any], name: str, if_null: int, if_missing: int) -> int:
    """Returns a value, with different defaults for null and for a missing key, as Hugging Face."""
    if name not in said:
        return if_missing
    return if_null if said[name] is None else checked(name, said[name], int)


def _eos(said: Mapping[str, Any], family: Family, vocabulary: int) -> tuple[int, ...]:
    if "eos_token_id" not in said:
        return tuple(token for token in family.eos if token < vocabulary)
    value = said["eos_token_id"]
    if value is None:
        return ()
    listed = value if isinstance(value, list) else [value]
    tokens = tuple(checked_list("eos_token_id", listed, int))
    if len(tokens) > STOP_TOKENS_MAX or not all(0 <= token < vocabulary for token in tokens):
        raise ConfigError(
            f"eos_token_id must be up to {STOP_TOKENS_MAX} tokens from 0 to {vocabulary - 1}, not "
            f"{value!r}"
        )
    return tokens


def _windows(said: Mapping[str, Any], family: Family, layers: int) -> tuple[int | None, ...]:
    """Returns the window of each layer."""
    window = _or(said, "sliding_window", int, None) if "sliding_window" in said else family.window
    if window is not None and window < 1:
        raise ConfigError(f"sliding_window must be at least 1, not {window}")
    if family.windows in (Windows.ALL_IF_USED, Windows.LATER_IF_USED):
        used = _or(said, "use_sliding_window", bool, False)
        window = window if used else None
    elif family.windows is Windows.NONE:
        window = None
    first = 0
    if family.windows is Windows.LATER_IF_USED and window is not None:
        first = _or(said, "max_window_layers", int, 28)
    slides = [window is not None and layer >= first for layer in range(layers)]
    if said.get("layer_types") is not None:
        slides = _slides_by_types(said, family, window, slides)
    return tuple(window if slide else None for slide in slides)


def _slides_by_types(
    said: Mapping[str, Any], family: Family, window: int | None, slides: list[bool]
) -> list[bool]:
    """Returns which layers have a window by `layer_types`; `slides` is the default without it."""
    types = checked_list("layer_types", said["layer_types"], str)
    others = sorted(set(types) - {FULL, SLIDING})
    if others or len(types) != len(slides):
        raise ConfigError(
            f"layer_types must be {FULL} or {SLIDING} of each of {len(slides)} layers, not {types}"
        )
    listed = [kind == SLIDING for kind in types]
    says_otherwise = listed != slides and family.windows is not Windows.LATER_IF_USED
    if says_otherwise or (any(listed) and window is None):
        raise ConfigError(
            f"layer_types {types} contradict a sliding_window of {window} in a {said['model_type']}"
        )
    return listed


def _experts(
    said: Mapping[str, Any], family: Family, layers: int, intermediate: int
) -> dict[str, Any]:
    """Returns the fields of Config that concern experts."""
    if family.experts_at is None:
        return {}
    counts = {
        name: checked(name, said[name], int)
        for name in ("num_local_experts", "num_experts")
        if said.get(name) is not None
    }
    if not counts or said.get("num_experts_per_tok") is None:
        raise ConfigError(
            f"a {said['model_type']} must say num_experts_per_tok and "
            f"{'num_local_experts' if said['model_type'] == 'mixtral' else 'num_experts'}"
        )
    if len(set(counts.values())) > 1:
        raise ConfigError("num_local_experts and num_experts differ")
    experts = next(iter(counts.values()))
    found = {
        "num_local_experts": experts,
        "num_experts_per_tok": checked("num_experts_per_tok", said["num_experts_per_tok"], int),
        "moe_intermediate_size": intermediate,
    }
    if experts < 1:
        raise ConfigError(f"{next(iter(counts))} must be at least 1, not {experts}")
    if "moe_intermediate_size" not in family.reads:
        return found
    if said.get("moe_intermediate_size") is None:
        raise ConfigError("it does not say moe_intermediate_size")
    step = _or(said, "decoder_sparse_step", int, 1)
    if step < 1:
        raise ConfigError(f"decoder_sparse_step must be at least 1, not {step}")
    dense = set(checked_list("mlp_only_layers", said.get("mlp_only_layers") or [], int))
    dense |= {layer for layer in range(layers) if (layer + 1) % step}
    return found | {
        "moe_intermediate_size": checked(
            "moe_intermediate_size", said["moe_intermediate_size"], int
        ),
        "norm_topk_prob": _or(said, "norm_topk_prob", bool, False),
        "dense_layers": frozenset(dense),
    }
