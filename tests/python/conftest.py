"""Options of the Python tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=1, help="first seed of random configurations")
    parser.addoption(
        "--configurations",
        type=int,
        default=120,
        help="of low latency, and of exchanges between hosts: of 2,000 each",
    )
    parser.addoption(
        "--deep-ep",
        type=Path,
        metavar="FOLDER",
        help="a checkout of DeepEP, whose tests are to run",
    )


@pytest.fixture(scope="session")
def base_seed(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--seed")


@pytest.fixture(scope="session")
def configurations(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--configurations")


@pytest.fixture(scope="session")
def deep_ep_checkout(request: pytest.FixtureRequest) -> Path | None:
    return request.config.getoption("--deep-ep")


@pytest.fixture(params=["host", "cuda"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Runs a program on the ranks of the deep_ep tests."""
    from deep_ep_batch import run_on

    return partial(run_on, request.param)


@pytest.fixture(scope="session")
def torch_backend() -> None:
    """Builds the module, however long that takes on a busy machine, so that ranks find it."""
    subprocess.run([sys.executable, "-c", "import tokenyard.torch"], timeout=500, check=True)
