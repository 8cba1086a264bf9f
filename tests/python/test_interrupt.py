"""Ctrl-C ends any wait within a second, and leaves no process behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from programs import start_python

# An idle machine takes less than a second. One that is busy with other tests gets more, still far
# below the ten minutes that every wait here would take.
SOON_S = 20

PROGRAM = """
import sys
import time
import numpy as np
import ml_dtypes
import tokenyard

def wait(world):
    exchange = tokenyard.ExpertParallel(world, experts=2, hidden=8, topk=1, tokens_max=4)
    world.barrier()
    if world.rank == 0:
        print("waiting", flush=True)
    if "{kind}" == "python":
        time.sleep(600)
    elif "{kind}" == "barrier":
        if world.rank == 0:
            world.barrier("for ever")
        time.sleep(600)
    elif world.rank == 0:
        x = np.zeros((4, 8), ml_dtypes.bfloat16)
        exchange.dispatch(x, np.zeros((4, 1), np.int64), np.ones((4, 1), np.float32))
    else:
        time.sleep(600)

if __name__ == "__main__":
    try:
        if "{mode}" == "main":
            job = tokenyard.connect("tcp://127.0.0.1:{port}", rank=0, size=2, timeout=600)
        tokenyard.launch(wait, ranks=2, processes="{mode}" == "processes", timeout=600)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(3)
"""


def start(tmp_path: Path, mode: str, kind: str, port: int = 0) -> subprocess.Popen[str]:
    program = tmp_path / "program.py"
    program.write_text(
        PROGRAM.replace("{mode}", mode).replace("{kind}", kind).replace("{port}", str(port))
    )
    return start_python(program, stderr=subprocess.PIPE)


def children_of(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


def all_gone(processes: set[int]) -> bool:
    """Waits a little: multiprocessing's helper notices the end of its parent only by its pipe."""
    deadline = time.monotonic() + SOON_S
    while any(Path(f"/proc/{process}").exists() for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def interrupt(process: subprocess.Popen[str]) -> None:
    """Sends Ctrl-C and checks that the program ends soon."""
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=SOON_S)
    finally:
        process.kill()
    assert process.returncode == 3, err
    assert "interrupted" in out


def wait_for_listener(port: int) -> None:
    """Waits for a listener. The connection sends nothing, and is rejected in time."""
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "nobody listens"
            time.sleep(0.02)


@pytest.mark.parametrize("mode", ["threads", "processes"])
@pytest.mark.parametrize("kind", ["barrier", "dispatch", "python"])
def test_a_launch_ends(tmp_path: Path, mode: str, kind: str) -> None:
    process = start(tmp_path, mode, kind)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n", process.stderr and process.stderr.read()
    children = children_of(process.pid)
    assert len(children) >= 2 or mode == "threads"
    interrupt(process)
    assert all_gone(children)


def test_a_wait_of_the_main_thread_ends(tmp_path: Path) -> None:
    from tokenyard.world.rendezvous import HeldPort

    port = HeldPort()
    process = start(tmp_path, "main", "", port.number)
    wait_for_listener(
        port.number
    )  # It prints nothing while it waits for rank 1, which never comes.
    interrupt(process)
