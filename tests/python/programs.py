"""Runs Python programs as a user would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run_python(
    *arguments: str | Path, timeout: float = 300, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs this interpreter with arguments; `options` are those of subprocess.run."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        **options,
    )


def start_python(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    """Starts this interpreter with a pipe for its output; Ctrl-C reaches it."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        # Tests in a shell's background ignore Ctrl-C, which their children would inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def torchrun(program: str, ranks: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the text of a program with one process per rank, from a file in `folder`."""
    path = folder / "program.py"
    path.write_text(program, encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return run_python(*launcher, path)


def assert_beside_the_real_one_it_stops(package: str, real: str, folder: Path) -> None:
    """Checks that importing a compat package fails if the original distribution is installed."""
    (folder / f"{real}-1.2.dist-info").mkdir()
    about = folder / f"{real}-1.2.dist-info" / "METADATA"
    about.write_text(f"Metadata-Version: 2.1\nName: {real}\nVersion: 1.2\n", encoding="utf-8")
    ours = str(ROOT / "compat" / package)
    program = f"import sys; sys.path[:0] = {[ours, str(folder)]!r}; import {package}"
    done = run_python("-c", program)
    assert done.returncode == 1
    both = rf"{real.replace('_', '.')} 1.2 and tokenyard-{package.replace('_', '-')} are both"
    assert re.search(both, done.stderr), done.stderr


def assert_refused(done: subprocess.CompletedProcess[str], complaint: str) -> None:
    """Checks that a wrong argument gives one sentence that names it, and no traceback."""
    assert done.returncode == 2
    assert complaint in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def assert_ctrl_c_ends_all(*arguments: str | Path, first_line: str) -> None:
    """Checks that a program, interrupted after a line with these words, ends with 130 and one word
    of its own, and that none of its processes is left."""
    program = start_python(*arguments, stderr=subprocess.PIPE, start_new_session=True)
    assert program.stdout is not None
    assert first_line in program.stdout.readline()
    os.killpg(program.pid, signal.SIGINT)  # To the whole process group, like a terminal.
    _, errors = program.communicate(timeout=60)
    assert program.returncode == 130
    assert errors == "Interrupted.\n"
    until = time.monotonic() + 20
    while _any_left(program.pid):
        assert time.monotonic() < until, "a rank is left"
        time.sleep(0.05)


def _any_left(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
