"""Processes of ranks, which an example starts, listens to and ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from program import Failed

SILENCE_S = 120.0
"""Seconds without a message from any rank after which the run has failed."""


@contextmanager
def started(process: SpawnProcess) -> Iterator[None]:
    """Starts a process, and holds Ctrl-C back until the caller has noted whom it has to end."""
    # Ctrl-C is for this process, which ends the others: they inherit the signal mask.
    resource_tracker.ensure_running()  # Starting it later would unmask SIGINT.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def messages(
    ranks: Mapping[Connection, tuple[int, SpawnProcess]],
) -> Iterator[tuple[Connection, Any]]:
    """Waits for messages of ranks, and yields each with its pipe. Raises Failed if a process ends
    without its last message, or all are silent."""
    ready = wait(list(ranks), SILENCE_S)
    if not ready:
        raise Failed(f"no rank has reported for {SILENCE_S} s")
    for home in ready:
        assert isinstance(home, Connection)
        rank, process = ranks[home]
        try:
            said = home.recv()
        except EOFError:
            process.join()
            raise Failed(f"rank {rank} ended with {process.exitcode}") from None
        yield home, said


def end_at_once(processes: list[SpawnProcess]) -> None:
    """Kills processes. All are stopped first, so that none lives to report another's end."""
    for blow in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, blow)
    for process in processes:
        process.join()
