"""Every example as a program: help, sizes, Ctrl-C, closed output, blocked results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import EXAMPLES, run_python, start_python

pytest.importorskip("rich")
pytest.importorskip("matplotlib")

PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name != "program.py")
SMALL = ["--tokens", "40", "--hidden", "64"]
"""Arguments of a demo that takes a second."""


def test_there_are_examples() -> None:
    names = "decode.py moe_layer.py recover.py serve_elastic.py train_elastic.py train_moe.py"
    assert set(names.split()) <= set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_needs_nothing_but_python(name: str) -> None:
    # -S and -I: neither site-packages nor PYTHONPATH, so none of the example's packages.
    done = run_python("-I", "-S", "-c", _BARE, EXAMPLES / name, "--help")
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


def test_missing_packages_are_named_for_pip(tmp_path: Path) -> None:
    wanted = {
        "": "This example needs rich: pip install '.[demo]'",
        "tokenyard": "This example needs rich: pip install rich matplotlib safetensors",
    }
    for found, complaint in wanted.items():
        if found:
            (tmp_path / f"{found}.py").write_text("def __getattr__(name): return int\n")
        code = f"import sys; sys.path.append({str(tmp_path)!r}); {_BARE}"
        done = run_python("-I", "-S", "-c", code, EXAMPLES / "moe_layer.py", "--out", tmp_path)
        assert done.returncode == 1
        assert done.stderr.strip() == complaint


_BARE = (
    "import runpy, sys; sys.argv.pop(0); sys.path.insert(0, sys.argv[0].rpartition('/')[0]);"
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--hidden", "100000000000"], "--hidden 100000000000"),
        (["--tokens", "100000000000"], "--tokens 100000000000"),
        (["--ranks", "64", "--experts", "64000000"], "--experts 64000000"),
    ],
)
def test_a_demo_that_memory_cannot_hold_is_refused(
    tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    done = run_python(EXAMPLES / "moe_layer.py", "--out", tmp_path, *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "of memory" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("balance_experts.py", ["--steps", "100000000000"]),
        ("moe_layer.py", ["--ranks", "100000"]),
        ("serve_elastic.py", ["--ranks", "100000"]),
        ("train_elastic.py", ["--ranks", "100000"]),
        ("train_elastic.py", ["--steps", "100000000000"]),
        ("train_moe.py", ["--steps", "100000000000"]),
    ],
)
def test_a_count_past_its_bound_is_refused_with_the_bound(
    tmp_path: Path, name: str, arguments: list[str]
) -> None:
    done = run_python(EXAMPLES / name, "--out", tmp_path, *arguments)
    assert done.returncode == 2
    assert f"{arguments[0]} must be from" in done.stderr


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("balance_experts.py", "balance.png"),
        ("moe_layer.py", "load.png"),
        ("moe_layer.py", "trace.json"),
        ("serve_elastic.py", "serving.png"),
        ("train_elastic.py", "loss.png"),
        ("train_moe.py", "report.json"),
    ],
)
def test_a_result_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, name: str, result: str
) -> None:
    (tmp_path / result).mkdir()
    done = run_python(EXAMPLES / name, "--out", tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"--out: cannot write {tmp_path / result}: Is a directory\n"
    assert [path.name for path in tmp_path.iterdir()] == [result]


def test_a_full_disk_behind_standard_output_is_told_in_a_sentence(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = _demo(tmp_path, full)
    assert done.returncode == 1
    assert done.stderr == "Cannot go on with standard output: No space left on device\n"


def test_a_reader_that_has_gone_is_no_traceback(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = _demo(tmp_path, writing)
    finally:
        os.close(writing)
    assert done.returncode != 0
    assert done.stderr == ""


def test_a_closed_standard_output_is_told_and_the_demo_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "moe_layer.py"), "--out", str(tmp_path), *SMALL]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("Standard output is closed")
    assert (tmp_path / "report.json").stat().st_size > 0


def _demo(out: Path, stdout: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLES / "moe_layer.py", "--out", out, *SMALL],
        stdout=stdout,  # type: ignore[call-overload]
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("columns", [40, 80])
def test_numbers_are_whole_on_a_narrow_terminal(tmp_path: Path, columns: int) -> None:
    environment = {**os.environ, "COLUMNS": str(columns)}
    done = run_python(
        EXAMPLES / "moe_layer.py", "--out", tmp_path, "--ranks", "2", *SMALL, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "\u2026" not in done.stdout  # The mark of a cell that was cut.
    assert all(len(line) <= columns for line in done.stdout.splitlines())


def await_first_import(pid: int) -> None:
    """Waits until a program imports NumPy. Python itself answers an interrupt before that."""
    deadline = time.monotonic() + 60
    while "numpy" not in Path(f"/proc/{pid}/maps").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("name", "arguments", "seconds"),
    [
        ("moe_layer.py", ["--tokens", "20000"], 0.0),  # While it imports.
        ("moe_layer.py", ["--tokens", "20000"], 1.2),
        ("moe_layer.py", ["--tokens", "20000", "--processes"], 0.7),
        ("moe_layer.py", ["--tokens", "20000", "--processes"], 1.7),
        ("serve_elastic.py", [], 1.7),
        ("train_elastic.py", [], 1.2),
    ],
)
def test_ctrl_c_ends_it_with_130_and_one_word(
    tmp_path: Path, name: str, arguments: list[str], seconds: float
) -> None:
    program = start_python(
        EXAMPLES / name,
        "--out",
        tmp_path,
        *arguments,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    await_first_import(program.pid)
    time.sleep(seconds)
    os.killpg(program.pid, signal.SIGINT)  # To the whole process group, like a terminal.
    _, errors = program.communicate(timeout=60)
    assert errors == "Interrupted.\n"
    assert program.returncode == 130
