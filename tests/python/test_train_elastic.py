"""A short elastic training: killed ranks do not change its curve."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from programs import (
    EXAMPLES,
    assert_ctrl_c_ends_all,
    assert_refused,
    run_python,
    start_python,
)

pytest.importorskip("matplotlib")
PROGRAM = EXAMPLES / "train_elastic.py"


def train(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python(PROGRAM, "--out", out, *arguments)


def test_the_curve_is_the_same_while_ranks_are_killed(tmp_path: Path) -> None:
    done = train(tmp_path, "--steps", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["ok"]
    assert len(report["losses"]) == 60
    assert report["losses"][-1] < 0.8 * report["losses"][0]  # It does learn.
    killed = [rank for kill in report["kills"] for rank in kill["ranks"]]
    assert killed.count(0) == 2
    assert len(killed) == 6
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--ranks", "2"], "--ranks"),
        (["--steps", "3"], "--steps"),
        (["--text", "no/such/file"], "no/such/file"),
        (["--out", "/dev/null/out"], "/dev/null/out"),
    ],
)
def test_wrong_arguments_get_one_sentence(
    tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    done = train(tmp_path, *arguments)
    assert_refused(done, complaint)


def test_ctrl_c_ends_all_processes_without_a_word_of_theirs(tmp_path: Path) -> None:
    assert_ctrl_c_ends_all(PROGRAM, "--out", tmp_path, first_line="undisturbed")


def test_the_ranks_end_when_the_program_is_killed(tmp_path: Path) -> None:
    """Also stopped ranks, which would not end by themselves."""
    program = start_python(PROGRAM, "--out", tmp_path, start_new_session=True)
    try:
        until = time.monotonic() + 200
        while sum(has_threads(rank) for rank in ranks_of(program.pid)) < 4:
            assert time.monotonic() < until, "the ranks do not start"
            time.sleep(0.02)
        for rank in ranks_of(program.pid):
            os.kill(int(rank.name), signal.SIGSTOP)
        program.kill()
        program.wait()
        until = time.monotonic() + 20
        while ranks_of(program.pid):
            assert time.monotonic() < until, "a rank outlives its supervisor"
            time.sleep(0.05)
    finally:
        program.kill()
        program.wait()
        for rank in ranks_of(program.pid):
            os.kill(int(rank.name), signal.SIGKILL)


def has_threads(rank: Path) -> bool:
    """Returns whether it has joined its job, whose control plane is a thread."""
    try:
        return len(list((rank / "task").iterdir())) > 1
    except OSError:  # It has just ended.
        return False


def ranks_of(group: int) -> list[Path]:
    """Returns processes of the group that multiprocessing spawned, without its resource tracker."""

    def is_rank(process: Path) -> bool:
        try:
            return os.getpgid(int(process.name)) == group and (
                b"spawn_main" in (process / "cmdline").read_bytes()
            )
        except OSError:  # It has just ended.
            return False

    return [path for path in Path("/proc").iterdir() if path.name.isdecimal() and is_rank(path)]
