"""Checks of the types of a config.json's values."""

from __future__ import annotations

from typing import Any

from program import Refused

NAMES = {int: "a number", float: "a number", str: "a string", bool: "true or false"}
LARGEST = 1e38


class ConfigError(Refused):
    """The config of a model that the tasks do not support. The message names the key."""


def checked(name: str, value: Any, kind: type) -> Any:
    """Returns a value of type `kind`.

    Raises:
        ConfigError: it is of another type, or a number that is not finite or exceeds 32 bits.
    """
    kinds = (int, float) if kind is float else (kind,)
    if type(value) not in kinds:
        raise ConfigError(f"{name} must be {NAMES[kind]}, not {value!r}")
    if kind is float and not abs(value) < LARGEST:
        raise ConfigError(f"{name} must be a finite number of 32 bits, not {value!r}")
    if kind is int and not abs(value) < 2**31:
        raise ConfigError(f"{name} must be a number of 32 bits, not {value!r}")
    return value


def checked_list(name: str, value: Any, kind: type) -> list[Any]:
    """Returns a list with elements of type `kind`.

    Raises:
        ConfigError: it is no list, or an element is of another type.
    """
    if not isinstance(value, list):
        raise ConfigError(f"{name} must be a list, not {value!r}")
    return [checked(name, element, kind) for element in value]
