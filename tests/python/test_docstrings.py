"""Every public name is documented, and the examples of docstrings run."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tokenyard
from tokenyard import launch

MODULES = [
    "arrays",
    "collectives.buffers",
    "collectives.group",
    "collectives.collectives",
    "collectives.store_server",
    "collectives.work",
    "errors",
    "expert_parallel.held_experts",
    "expert_parallel.low_latency",
    "expert_parallel.throughput",
    "job",
    "megakernel.megakernel",
    "megakernel.task_graph",
    "metrics",
    "moe.balance",
    "moe.casts",
    "sizes",
    "world.launch",
    "world.node_list",
    "world.rendezvous",
    "world.world",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str, tmp_path: Path) -> None:
    module = importlib.import_module(f"tokenyard.{name}")
    store = f"file:{tmp_path}"
    names = dict(tokenyard=tokenyard, np=np, ml_dtypes=ml_dtypes, store=store)
    result = doctest.testmod(module, extraglobs=names)
    assert result.failed == 0


def test_there_are_examples() -> None:
    things = [tokenyard.World, tokenyard.World.all_gather, tokenyard.ExpertParallel, launch]
    things += [tokenyard.Collectives, tokenyard.Group, tokenyard.Work, tokenyard.StoreServer]
    for thing in things:
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
    for word in ("hidden] bfloat16", "float32", "Raises:", "PeerTimeout"):
        assert word in text


@pytest.mark.parametrize("name", ["collectives", "expert_parallel", "megakernel", "world"])
def test_completion_offers_public_names_only(name: str) -> None:
    package = importlib.import_module(f"tokenyard.{name}")
    assert dir(package) == sorted(package.__all__)
    for public in package.__all__:
        assert not public.startswith("_")
        assert hasattr(package, public)
