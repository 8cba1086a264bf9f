"""The example that moves hot experts apart: results are right, ranks are balanced better."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from programs import EXAMPLES, assert_refused, run_python

pytest.importorskip("rich")
pytest.importorskip("matplotlib")


def balance(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python(EXAMPLES / "balance_experts.py", "--out", out, *arguments)


def test_experts_that_move_are_better_balanced(tmp_path: Path) -> None:
    sizes = ["--ranks", "3", "--experts", "9", "--spare", "3", "--tokens", "64"]
    done = balance(tmp_path, *sizes, "--steps", "9", "--every", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Right" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["ok"]
    assert [*report["maps"]] == ["0", "3", "6"]
    for places in report["maps"].values():
        assert {*range(9)} <= {*places}
        assert len(places) == 12
    staying, moving = report["imbalance_staying"], report["imbalance_moving"]
    assert len(staying) == len(moving) == 6
    assert sum(moving) < 0.8 * sum(staying)
    assert report["experts_moved"] > 0
    assert (tmp_path / "balance.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--ranks", "1"], "--ranks"),
        (["--experts", "2"], "--experts"),
        (["--spare", "17"], "--spare"),
        (["--top-k", "17"], "--top-k"),
        (["--tokens", "0"], "--tokens"),
        (["--every", "36"], "--every"),
        (["--seed", "-1"], "--seed"),
        (["--out", "/dev/null/out"], "/dev/null/out"),
    ],
)
def test_wrong_arguments_get_one_sentence(
    tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    assert_refused(balance(tmp_path, *arguments), complaint)
