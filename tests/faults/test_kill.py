"""Kills or stops one of several real processes during an exchange: the others learn its rank within
their deadline, leak nothing, and continue without it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tokenyard.world.rendezvous import HeldPort

PROGRAM = Path(__file__).with_name("exchanging_rank.py")
SIZE, VICTIM = 4, 2
SLACK_S = 20.0
"""Allowance for machines that run other tests at the same time, in seconds."""

Rank = subprocess.Popen[str]


@contextmanager
def ranks_exchanging(kind: str, timeout_s: float) -> Iterator[list[Rank]]:
    port = HeldPort()
    command = [sys.executable, str(PROGRAM)]
    ranks = [
        subprocess.Popen(
            [*command, *map(str, (rank, SIZE, port.number, VICTIM, timeout_s)), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(SIZE)
    ]
    try:
        yield ranks
    finally:
        port.release()
        for rank in ranks:
            rank.kill()
            rank.communicate()


def start(ranks: list[Rank]) -> None:
    """Starts all ranks once all have loaded, so that none waits for another's imports."""
    for number, rank in enumerate(ranks):
        assert hear(rank) == {"loaded": number}
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("start\n")
        rank.stdin.flush()


def shared_memory() -> set[Path]:
    """Returns our own shared memory, by name; that of other programs may change."""
    return {path for path in Path("/dev/shm").iterdir() if "tokenyard" in path.name}


def hear(rank: Rank) -> dict[str, Any]:
    assert rank.stdout is not None
    line = rank.stdout.readline()
    assert line, f"a rank ended with {rank.wait()}: {rank.stderr and rank.stderr.read()}"
    return json.loads(line)


@pytest.mark.parametrize("kind", ["silent", "busy"])
@pytest.mark.parametrize(
    ("blow", "error", "timeout_s"),
    [
        # A killed rank is noticed long before any deadline, a stopped one only by the deadline.
        (signal.SIGKILL, "PeerLost", 120.0),
        (signal.SIGSTOP, "PeerTimeout", 2.0),
    ],
)
def test_survivors_are_told_and_go_on(
    kind: str, blow: signal.Signals, error: str, timeout_s: float
) -> None:
    left_before = shared_memory()
    with ranks_exchanging(kind, timeout_s) as ranks:
        start(ranks)
        for number, rank in enumerate(ranks):
            assert hear(rank) == {"ready": number}
        # In a dispatch whose counts the victim never sends, or anywhere in a loop of exchanges: the
        # exact place does not matter.
        time.sleep(0.3)
        ranks[VICTIM].send_signal(blow)

        survivors = [rank for number, rank in enumerate(ranks) if number != VICTIM]
        for rank in survivors:
            told = hear(rank)
            # A stopped rank is lost, too, once another survivor has given it up.
            assert told["error"] in (error, "PeerLost"), told
            assert told["rank"] == VICTIM, told
            assert told["phase"].startswith(("dispatch", "combine")), told
            assert str(VICTIM) in told["sentence"]
            assert told["phase"] in told["sentence"]
            deadline_s = timeout_s if error == "PeerTimeout" else 0
            assert told["took_s"] < deadline_s + SLACK_S, told
        for rank in survivors:
            # One mapping per rank of the new world, none of the old one.
            rebuilt = hear(rank)
            assert rebuilt["rebuilt"] == SIZE - 1
            assert rebuilt["right"]
            # An arena per rank, and the register that witnesses their agreements.
            assert rebuilt["mappings"] <= SIZE - 1 + 1, rebuilt
        for rank in survivors:
            assert hear(rank) == {"mappings": 0}
            assert rank.wait(timeout=60) == 0
    assert shared_memory() <= left_before
