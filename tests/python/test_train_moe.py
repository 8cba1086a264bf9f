"""A short MoE training: losses on several ranks are those of one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from programs import EXAMPLES, assert_refused, run_python

try:
    import matplotlib
    import torch
except ModuleNotFoundError:
    matplotlib = torch = None  # Skipped test by test: a file without tests counts as a failure.

pytestmark = pytest.mark.skipif(
    torch is None or matplotlib is None, reason="needs torch, matplotlib"
)


def train(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python(EXAMPLES / "train_moe.py", "--out", out, *arguments, timeout=1200)


@pytest.mark.parametrize(("hosts", "steps", "compared"), [(1, 12, 8), (2, 6, 3)])
def test_losses_are_those_of_one_rank(
    tmp_path: Path, hosts: int, steps: int, compared: int
) -> None:
    sizes = ["--ranks", "2", "--hosts", f"{hosts}"]
    done = train(tmp_path, *sizes, "--steps", f"{steps}", "--compared", f"{compared}")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["ok"]
    assert report["hosts"] == hosts
    assert len(report["losses"]) == steps
    for mine, alone in zip(report["losses"], report["losses_alone"], strict=False):
        assert mine == pytest.approx(alone, rel=1e-5)
    assert report["losses"][-1] < 0.9 * report["losses"][0]  # It does learn.
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--ranks", "3"], "--ranks"),
        (["--ranks", "4", "--hosts", "3"], "--hosts"),
        (["--ranks", "16", "--device", "cuda"], "GPU of its own"),
        (["--steps", "3", "--compared", "4"], "--compared"),
        (["--text", "no/such/file"], "no/such/file"),
        (["--out", "/dev/null/out"], "/dev/null/out"),
    ],
)
def test_wrong_arguments_get_one_sentence(
    tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    done = train(tmp_path, *arguments)
    assert_refused(done, complaint)
