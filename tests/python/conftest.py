"""Options of the Python tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=1, help="first seed of random configurations")


@pytest.fixture(scope="session")
def base_seed(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--seed")
