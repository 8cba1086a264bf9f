"""The MoE training, short: on several ranks its losses are those of one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

try:
    import matplotlib
    import torch
except ModuleNotFoundError:
    matplotlib = torch = None  # Skipped test by test: a file without any would count as a failure.

pytestmark = pytest.mark.skipif(
    torch is None or matplotlib is None, reason="needs torch, matplotlib"
)
PROGRAM = Path(__file__).parents[2] / "examples" / "train_moe.py"


def train(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROGRAM, "--out", out, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_losses_are_those_of_one_rank(tmp_path: Path) -> None:
    done = train(tmp_path, "--ranks", "2", "--steps", "12", "--compared", "8")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["ok"]
    assert len(report["losses"]) == 12
    for mine, alone in zip(report["losses"], report["losses_alone"], strict=False):
        assert mine == pytest.approx(alone, rel=1e-5)
    assert report["losses"][-1] < 0.9 * report["losses"][0]  # It does learn.
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--ranks", "3"], "--ranks"),
        (["--steps", "3", "--compared", "4"], "--compared"),
        (["--text", "no/such/file"], "no/such/file"),
    ],
)
def test_wrong_arguments_get_one_sentence(
    tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    done = train(tmp_path, *arguments)
    assert done.returncode == 2
    assert complaint in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
