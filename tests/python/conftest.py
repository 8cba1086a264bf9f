"""Options of the Python tests."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=1, help="first seed of random configurations")
    parser.addoption(
        "--configurations", type=int, default=120, help="of the low-latency exchange, of 2,000"
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
