"""The committed stub is up to date, and package and examples pass the type checker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from programs import ROOT, run_python

import tokenyard

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
    done = run_python("-m", "mypy", "--cache-dir", "build/mypy", cwd=ROOT)
    assert done.returncode == 0, done.stdout
