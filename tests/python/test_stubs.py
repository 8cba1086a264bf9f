"""The committed stub is up to date, and package and examples pass the type checker."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from programs import ROOT, run_python

import tokenyard
from tokenyard.expert_parallel.arguments import CombineOptions

ARGUMENTS = ("--exclude-values", "-m", "_tokenyard")
COMMITTED = ROOT / "python" / "_tokenyard.pyi"


def test_the_stub_is_up_to_date(tmp_path: Path) -> None:
    pytest.importorskip("nanobind")
    fresh = tmp_path / "_tokenyard.pyi"
    subprocess.run(
        [sys.executable, "-m", "nanobind.stubgen", "-q", *ARGUMENTS, "-o", fresh], check=True
    )
    assert fresh.read_text() == COMMITTED.read_text(), (
        f"python -m nanobind.stubgen {' '.join(ARGUMENTS)} -o {COMMITTED.relative_to(ROOT)}"
    )


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(tokenyard.__file__).parent / "py.typed").exists()


def test_package_and_examples_pass_the_type_checker() -> None:
    pytest.importorskip("mypy")
    pytest.importorskip("torch", reason="types of torch are unknown without it")
    done = run_python("-m", "mypy", "--cache-dir", "build/mypy", cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_the_overloads_of_combine_have_all_its_options() -> None:
    parameters = inspect.signature(tokenyard.ExpertParallel.combine).parameters.values()
    options = [one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]
    assert options == list(CombineOptions.__annotations__)
