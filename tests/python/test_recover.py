"""The recovery example: every signal, every way to continue, and errors for wrong arguments."""

from __future__ import annotations

import re

import pytest
from programs import EXAMPLES, assert_refused, run_python

PROGRAM = EXAMPLES / "recover.py"
WARNING = re.compile(r"[-0-9]+ [:.0-9]+ tokenyard warning rank \d epoch \d+: ")


@pytest.mark.parametrize("blow", ["kill", "stop"])
@pytest.mark.parametrize("on_death", ["continue", "replace"])
def test_ranks_go_on_after_a_blow(blow: str, on_death: str) -> None:
    done = run_python(
        PROGRAM, "--ranks", "3", "--steps", "20", "--blow", blow, "--on-death", on_death
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bit for bit" in done.stdout
    assert f"on {2 if on_death == 'continue' else 3} ranks" in done.stdout
    # Of the ranks that wait for a stopped one, the first to time out ends the waits of the others.
    error = "PeerLost" if blow == "kill" else "Peer(Timeout|Lost)"
    assert re.search(rf"rank \[1\] was lost: {error}", done.stdout), done.stdout
    # Nothing but the library's warnings, which docs/metrics.md lists.
    lines = done.stderr.splitlines()
    assert any(line.endswith("the members go on without rank 1") for line in lines), done.stderr
    assert [line for line in lines if not WARNING.match(line)] == []
    if on_death == "continue":
        ended = "killed by SIGKILL" if blow == "kill" else "OutOfTouch: this rank was out of touch"
        assert ended in done.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--ranks", "2"], "--ranks"),
        (["--steps", "3"], "--steps"),
        (["--timeout", "0"], "--timeout"),
        (["--blow", "word"], "--blow"),
    ],
)
def test_wrong_arguments_get_one_sentence(arguments: list[str], complaint: str) -> None:
    assert_refused(run_python(PROGRAM, *arguments), complaint)
