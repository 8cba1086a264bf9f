"""python -m tokenyard."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import tokenyard


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tokenyard", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_names_the_commands() -> None:
    done = run()
    assert done.returncode == 0
    assert "doctor" in done.stdout


def test_version() -> None:
    assert run("--version").stdout == f"tokenyard {tokenyard.__version__}\n"


def test_doctor_says_what_works_here() -> None:
    done = run("doctor")
    assert done.returncode == 0, done.stderr
    assert "host" in done.stdout
    assert "nvlink" in done.stdout


def test_doctor_for_programs() -> None:
    found = json.loads(run("doctor", "--json").stdout)
    assert set(found) == {"system", "toolkit", "driver", "gpus", "fabrics"}
    works = {fabric["name"]: fabric["works"] for fabric in found["fabrics"]}
    assert any(works.values()), works
    assert all(fabric["why"] for fabric in found["fabrics"])


@pytest.mark.parametrize("wrong", ["docter", "--doctor"])
def test_a_wrong_command_is_refused(wrong: str) -> None:
    assert run(wrong).returncode == 2
