"""The decoder example as a program: wrong input, Ctrl-C, closed output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import EXAMPLES, run_python, start_python

sys.path.insert(0, str(EXAMPLES))
import program
from decoder.arguments import parser
from decoder.config import toy
from decoder.job import job_of

from decoder import progress

DECODE = EXAMPLES / "decode.py"
LONG = ["--tokens", "4000", "--positions", "4096", "--counters", "--no-check"]
"""A decode of minutes."""


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--ranks", "100000"], "num_key_value_heads must be a multiple of the 100000 ranks"),
        (["--tokens", "100000000000"], "argument --tokens: '100000000000' is not"),
        (["--positions", "2147483640"], "--positions 2147483640 and the sizes of the model would"),
        (["--workers", "100000"], "argument --workers: '100000' is not"),
        (["--weights", "no/such/folder"], "no/such/folder: No such file or directory"),
    ],
)
def test_input_that_cannot_be_ends_in_a_sentence(arguments: list[str], complaint: str) -> None:
    done = run_python(DECODE, *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_config_that_the_tasks_cannot_do_is_refused(tmp_path: Path) -> None:
    about = tmp_path / "config.json"
    about.write_text(json.dumps({"model_type": "gemma2", "final_logit_softcapping": 30.0}))
    done = run_python(DECODE, "--config", about)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    for part in ("model_type 'gemma2' is none of", "final_logit_softcapping 30.0 (capped logits)"):
        assert part in done.stderr


@pytest.mark.parametrize("runs", [False, True], ids=["while it imports", "while it runs"])
@pytest.mark.parametrize("ranks", [[], ["--ranks", "2", "--processes"]])
def test_ctrl_c_ends_it_with_130_and_one_word(ranks: list[str], runs: bool) -> None:
    decode = start_python(DECODE, *LONG, *ranks, stderr=subprocess.PIPE, start_new_session=True)
    assert decode.stderr is not None
    if runs:
        assert decode.stderr.readline().startswith("step ")
    else:
        await_library(decode.pid, "_multiarray_umath")
    os.killpg(decode.pid, signal.SIGINT)  # To the whole process group, like a terminal.
    _, errors = decode.communicate(timeout=120)
    assert without_progress(errors) == ["Interrupted."]
    assert decode.returncode == 130


def await_library(process: int, name: str) -> None:
    """Waits until the process has begun to load it."""
    end = time.monotonic() + 120
    while name not in Path(f"/proc/{process}/maps").read_text():
        assert time.monotonic() < end
        time.sleep(0.01)


def without_progress(errors: str) -> list[str]:
    """Returns lines of standard error; on a busy machine some show progress."""
    return [line for line in errors.splitlines() if not line.startswith("step ")]


def test_a_full_disk_behind_standard_output_is_told_in_a_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = _decoded(full)
    assert done.returncode == 1
    assert without_progress(done.stderr) == [
        "Cannot go on with standard output: No space left on device"
    ]


def test_a_reader_that_has_gone_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = _decoded(writing)
    finally:
        os.close(writing)
    assert done.returncode != 0
    assert without_progress(done.stderr) == []


def _decoded(stdout: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, DECODE, "--tokens", "4"],
        stdout=stdout,  # type: ignore[call-overload]
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def test_a_dumb_terminal_gets_no_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert progress.fresh_line() == "\r\033[K"
    monkeypatch.setenv("TERM", "dumb")
    assert progress.fresh_line() == ""


def test_ctrl_c_waits_for_the_end_of_imports() -> None:
    """A compiled module that is interrupted may raise another error, or ignore it."""
    reached = False
    with pytest.raises(KeyboardInterrupt), program.importing():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        reached = True
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("device", ["host", "cuda"])
def test_a_graph_that_chooses_no_workers_gets_some(device: str, tmp_path: Path) -> None:
    """0 lets DenseDecoder choose; heads of 24 channels are not for it."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(toy() | {"head_dim": 24}))
    job = job_of(parser("").parse_args(["--config", str(config), "--device", device]))
    assert not job.hands_on_words(1)
    assert job.workers == 4
