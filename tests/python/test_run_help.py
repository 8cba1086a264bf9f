"""`./run COMMAND --help` answers at once: on a fresh clone nothing is installed or built first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from programs import ROOT

import _tokenyard

BENCHES = sorted(path.stem for path in (ROOT / "bench").glob("*.cpp"))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a fresh clone's parts that help needs, and a PATH without compiler and installer."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copy(ROOT / "run", folder / "run")
    for part in ("bench", "examples", "packaging", "tests/mutants"):
        shutil.copytree(ROOT / part, folder / part)
    tools = folder / "tools"
    tools.mkdir()
    for tool in ("bash", "basename", "cat", "dirname", "echo", "env", "mkdir", "xargs"):
        found = shutil.which(tool)
        assert found is not None, tool
        (tools / tool).symlink_to(found)
    # The interpreter without its environment's packages; python3 in PATH may be a script.
    (tools / "python3").symlink_to(Path(sys.executable).resolve())
    return folder


def run(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [clone / "run", *arguments],
        env={**os.environ, "PATH": str(clone / "tools")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def help_of(clone: Path, *command: str) -> str:
    done = run(clone, *command, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert not (clone / ".venv").exists()
    return done.stdout


COMMANDS = [
    *("demo", "test", "bench", "simulate", "mutants"),
    *("fuzz", "doctor", "wheel", "docs", "format"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_installs_and_builds_nothing(clone: Path, command: str) -> None:
    assert f"./run {command}" in help_of(clone, command)


@pytest.mark.parametrize("command", [*COMMANDS, *(f"bench {name}" for name in BENCHES)])
def test_an_unknown_option_is_named_before_anything_is_built(clone: Path, command: str) -> None:
    done = run(clone, *command.split(), "--nonsense=1")
    assert done.returncode != 0
    assert "--nonsense" in done.stderr.splitlines()[-1]
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize("name", [*BENCHES, "simulate"])
def test_recorded_help_is_what_the_program_prints(clone: Path, name: str) -> None:
    command = ["simulate"] if name == "simulate" else ["bench", name]
    recorded = help_of(clone, *command)
    folder = "tests" if name == "simulate" else "bench"
    program = Path(_tokenyard.__file__).parents[2] / folder / name
    if not program.exists():
        pytest.skip(f"{name} is not built")
    printed = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    assert recorded == printed, f"record it anew: {program} --help >bench/help/{name}.txt"
