"""The command line of the built simulator: the arguments it rejects, and its errors."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import _tokenyard


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    built = Path(_tokenyard.__file__).parents[2] / "tests" / "simulate"
    if not built.exists():
        pytest.skip("simulate is not built")
    return subprocess.run(
        [built, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("--seeds 0", "no number from 1"),
        ("--seeds many", "no number from 1"),
        ("--suite litmus --seed 99999999999999999999", "no number from 0"),
        ("--suite litmus --seed -1", "no number from 0"),
        ("--suite litmus --seed 0x10", "no number from 0"),
        ("--suite litmus --budget nan", "no number from 0.001"),
        ("--suite litmus --budget 0", "no number from 0.001"),
        ("--suite litmus --budget 1e400", "no number from 0.001"),
        ("--suite litmus --seed 3 --seeds 5", "--seeds excludes --seed"),
        ("--suite litmus --seed 3 --first 2", "--first excludes --seed"),
        ("--suite memory --seed 3 --mutants", "excludes"),
        ("--suite memory --place kernel.hpp", "--place requires --mutants"),
        ("--suit memory", "--suit"),
        ("--suite memory --trace x", "--trace needs --suite and --seed"),
    ],
)
def test_what_cannot_be_is_refused_with_2(wrong: str, complaint: str) -> None:
    done = simulate(*wrong.split())
    assert done.returncode == 2
    assert complaint in done.stderr


def test_a_suite_that_there_is_not_is_answered_with_those_there_are() -> None:
    done = simulate("--suite", "nope")
    assert done.returncode == 2
    told = [line.split()[0] for line in simulate("--list").stdout.splitlines()]
    assert f"no suite is called nope; choose one of {', '.join(told)} (" in done.stderr


def test_help_is_not_a_refusal() -> None:
    done = simulate("--help")
    assert done.returncode == 0
    assert "./run simulate" in done.stdout


def test_a_full_disk_behind_standard_output_is_told() -> None:
    built = Path(_tokenyard.__file__).parents[2] / "tests" / "simulate"
    if not built.exists():
        pytest.skip("simulate is not built")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [built, "--list"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert "cannot write to standard output" in done.stderr
