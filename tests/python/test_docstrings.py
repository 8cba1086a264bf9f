"""Every public name is documented, and what the documentation runs, runs."""

from __future__ import annotations

import doctest
import inspect
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest

import tokenyard
from tokenyard import (
    arrays,
    errors,
    expert_parallel,
    launch,
    low_latency,
    rendezvous,
    sizes,
    world,
)

MODULES = {
    "arrays": arrays,
    "errors": errors,
    "expert_parallel": expert_parallel,
    "low_latency": low_latency,
    "rendezvous": rendezvous,
    "sizes": sizes,
    "world": world,
    "launch": inspect.getmodule(launch),
}


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    module = MODULES[name]
    assert isinstance(module, ModuleType)
    names = dict(tokenyard=tokenyard, np=np, ml_dtypes=ml_dtypes)
    result = doctest.testmod(module, extraglobs=names)
    assert result.failed == 0


def test_there_are_examples() -> None:
    for thing in (tokenyard.World, tokenyard.World.all_gather, tokenyard.ExpertParallel, launch):
        assert ">>>" in (inspect.getdoc(thing) or ""), thing


def test_everything_public_is_documented() -> None:
    for name in tokenyard.__all__:
        thing = getattr(tokenyard, name)
        if name == "__version__":
            continue
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                    assert inspect.getdoc(value), f"{name}.{member}"


@pytest.mark.parametrize("method", ["dispatch", "combine"])
def test_arrays_are_documented_with_shape_and_dtype(method: str) -> None:
    text = inspect.getdoc(getattr(tokenyard.ExpertParallel, method)) or ""
    for word in ("[tokens, hidden] bfloat16", "float32", "Raises:", "PeerTimeout"):
        assert word in text
