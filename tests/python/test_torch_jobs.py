"""The jobs behind torch's groups: when they end. Needs no torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ranks import file_store

import tokenyard


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports the module without its package, which imports torch."""
    package = ModuleType("tokenyard.torch")
    package.__path__ = [str(Path(tokenyard.__file__).parent / "torch")]
    monkeypatch.setitem(sys.modules, "tokenyard.torch", package)
    monkeypatch.delitem(sys.modules, "tokenyard.torch.jobs", raising=False)
    yield importlib.import_module("tokenyard.torch.jobs")
    sys.modules.pop("tokenyard.torch.jobs", None)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[tokenyard.Collectives]:
    with tokenyard.Collectives.connect(file_store(tmp_path), secret="s", rank=0, size=1) as job:
        yield job
        job.close()


def test_a_group_that_could_not_be_made_does_not_keep_its_job(
    jobs: Any, alone: tokenyard.Collectives
) -> None:
    job = jobs.Job(alone, [0])
    job.group([0], "default", 60)
    with pytest.raises(tokenyard.InvalidArgument, match="timeout"):
        job.group([0], "second", 1e12)
    assert jobs.job_that_holds([0]) is job
    job.group([0], "second", 60).barrier().wait()  # Tried again.
    job.without_one_group()
    job.without_one_group()
    assert jobs.job_that_holds([0]) is None
    assert repr(alone) == "Collectives(closed)"


def test_a_job_without_a_first_group_is_none(jobs: Any, alone: tokenyard.Collectives) -> None:
    alone.close()
    job = jobs.Job(alone, [0])
    with pytest.raises(tokenyard.InvalidArgument, match="closed"):
        job.group([0], "default", 60)
    assert jobs.job_that_holds([0]) is None
