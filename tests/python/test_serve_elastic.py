"""A short elastic serving: a killed rank is replaced, and with replicas no answer shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import EXAMPLES, assert_ctrl_c_ends_all, assert_refused, run_python

pytest.importorskip("matplotlib")
PROGRAM = EXAMPLES / "serve_elastic.py"


def test_answers_are_those_of_an_undisturbed_run(tmp_path: Path) -> None:
    done = run_python(PROGRAM, "--out", tmp_path, "--steps", "40")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["ok"]
    assert report["lacking"] == 0 < report["lacking_without_replicas"]
    assert report["answers"] > report["handed_again"]
    assert report["killed_at"] < report["without_at"] < report["replaced_at"] < report["steps"]
    assert (tmp_path / "serving.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--ranks", "2"], "--ranks"),
        (["--steps", "3"], "--steps"),
        (["--out", "/dev/null/a"], "/a"),
    ],
)
def test_wrong_arguments_get_one_sentence(
    tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    assert_refused(run_python(PROGRAM, "--out", tmp_path, *arguments), complaint)


def test_ctrl_c_ends_all_processes_without_a_word_of_theirs(tmp_path: Path) -> None:
    assert_ctrl_c_ends_all(PROGRAM, "--out", tmp_path, first_line="undisturbed")
