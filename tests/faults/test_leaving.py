"""Lets one of several real processes leave, or stop and wake, during an exchange: the others learn
of a goodbye at once, and a rank that wakes blames no other rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_kill import Rank, hear, start

from tokenyard.world.rendezvous import HeldPort

PROGRAM = Path(__file__).with_name("leaving_rank.py")
SIZE, VICTIM = 3, 1
SLACK_S = 30.0
"""Allowance for machines that run other tests at the same time, in seconds."""


@contextmanager
def ranks(how: str, timeout_s: float) -> Iterator[list[Rank]]:
    port = HeldPort()
    started = [
        subprocess.Popen(
            [
                sys.executable,
                str(PROGRAM),
                *map(str, (os.getpid(), rank, SIZE, port.number, timeout_s)),
                how,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(SIZE)
    ]
    try:
        start(started)
        for number, rank in enumerate(started):
            assert hear(rank) == {"ready": number}
        yield started
    finally:
        port.release()
        for rank in started:
            rank.kill()
            rank.communicate()


def let_go(rank: Rank) -> None:
    assert rank.stdin is not None
    rank.stdin.write("go on\n")
    rank.stdin.flush()


@pytest.mark.parametrize("how", ["raises", "returns", "closes"])
def test_a_rank_that_leaves_is_not_waited_for(how: str) -> None:
    with ranks(how, timeout_s=600.0) as started:
        survivors = [rank for number, rank in enumerate(started) if number != VICTIM]
        for rank in survivors:
            told = hear(rank)
            assert told["error"] == "PeerLost", told
            assert told["rank"] == VICTIM, told
            assert told["phase"].startswith(("dispatch", "combine")), told
            assert told["took_s"] < SLACK_S, told
        for rank in survivors:
            let_go(rank)
            assert rank.wait(timeout=60) == 0


@pytest.mark.parametrize("how", ["busy", "idle"])
def test_a_rank_that_was_stopped_says_so_when_it_wakes(how: str) -> None:
    """The rank is stopped during its calls, or between them."""
    timeout_s = 2.0
    with ranks(how, timeout_s) as started:
        victim = started[VICTIM]
        stopped_at = time.time()
        victim.send_signal(signal.SIGSTOP)
        survivors = [rank for number, rank in enumerate(started) if number != VICTIM]
        # The first to notice it evicts the rank, which may end another one's wait early.
        told_by_all = [hear(rank) for rank in survivors]
        assert {told["rank"] for told in told_by_all} == {VICTIM}, told_by_all
        errors = {told["error"] for told in told_by_all}
        assert "PeerTimeout" in errors, told_by_all
        assert errors <= {"PeerTimeout", "PeerLost"}, told_by_all
        for rank in survivors:
            assert hear(rank) == {"rebuilt": SIZE - 1}
        stopped_s = time.time() - stopped_at
        victim.send_signal(signal.SIGCONT)
        let_go(victim)
        told = hear(victim)
        assert told["error"] == "OutOfTouch", told
        assert "out of touch" in told["sentence"]
        assert told["absent_s"] > 0.9 * stopped_s
        assert abs(told["since"] - stopped_at) < 1
        for rank in survivors:
            let_go(rank)
            assert rank.wait(timeout=60) == 0
