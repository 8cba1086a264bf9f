"""The rotation of heads by position, from the forms that config.json has for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .values import ConfigError, checked

LLAMA_3 = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's scaling of low frequencies, for contexts longer than in training."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


def rotation(
    said: Mapping[str, Any], theta: float, layer_kinds: set[str]
) -> tuple[float, RopeScaling | None]:
    """Returns base and scaling from `rope_parameters` (transformers 5) or the older keys.

    The older keys are `rope_theta` and `rope_scaling`.

    Args:
        theta: the base if the config has none.
        layer_kinds: kinds of the model's layers, named as in `layer_types`.

    Raises:
        ConfigError: two forms contradict each other, or the tasks do not support them.
    """
    name, parameters = _parameters(said, layer_kinds)
    stretch = _scaling(name, parameters)
    bases = {
        key: checked(key, value, float)
        for key, value in [
            ("rope_theta", said.get("rope_theta")),
            (f"{name}'s rope_theta", parameters.get("rope_theta")),
        ]
        if value is not None
    }
    if len(set(bases.values())) > 1:
        raise ConfigError(f"{' and '.join(f'{key} {base}' for key, base in bases.items())} differ")
    base = next(iter(bases.values()), theta)
    if base <= 0:
        raise ConfigError(f"rope_theta must be above 0, not {base!r}")
    return base, stretch


def _parameters(said: Mapping[str, Any], layer_kinds: set[str]) -> tuple[str, dict[str, Any]]:
    """Returns the parameters as one dictionary, and its name for errors."""
    given = {key: said[key] for key in ("rope_scaling", "rope_parameters") if said.get(key)}
    for key, value in given.items():
        if not isinstance(value, dict):
            raise ConfigError(f"{key} must be an object, not {value!r}")
    if len(given) == 2 and given["rope_scaling"] != given["rope_parameters"]:
        raise ConfigError("rope_scaling and rope_parameters differ")
    if not given:
        return "rope_parameters", {}
    name, parameters = next(iter(given.items()))
    if any(isinstance(value, dict) for value in parameters.values()):
        if layer_kinds != {"full_attention"} or not isinstance(
            parameters.get("full_attention"), dict
        ):
            raise ConfigError(
                f"{name} of {' and '.join(parameters)} is not among what the tasks can do: all "
                "layers rotate alike"
            )
        name, parameters = f"{name} of full_attention", parameters["full_attention"]
    return name, {key: value for key, value in parameters.items() if value is not None}


def _scaling(name: str, parameters: dict[str, Any]) -> RopeScaling | None:
    kinds = [parameters[key] for key in ("rope_type", "type") if key in parameters] or ["default"]
    kind = kinds[0]
    if any(other != kind for other in kinds) or kind not in ("default", "llama3"):
        raise ConfigError(f"{name} of type {kind!r} is not among what the tasks can do")
    known = {"rope_type", "type", "rope_theta"} | (set(LLAMA_3) if kind == "llama3" else set())
    for key, value in parameters.items():
        if key not in known and not (key == "partial_rotary_factor" and value == 1):
            raise ConfigError(
                f"{name} with {key} {value!r} is not among what the tasks can do (type {kind!r})"
            )
    if kind == "default":
        return None
    missing = [key for key in LLAMA_3 if key not in parameters]
    if missing:
        raise ConfigError(f"{name} does not say {' and '.join(missing)}")
    factor, low, high = (checked(f"{name}'s {key}", parameters[key], float) for key in LLAMA_3[:3])
    positions = checked(f"{name}'s {LLAMA_3[3]}", parameters[LLAMA_3[3]], int)
    if not 0 < low < high or factor <= 0 or positions < 1:
        raise ConfigError(f"{name}'s factors are positive, the high one above the low")
    return RopeScaling(factor, low, high, positions)
