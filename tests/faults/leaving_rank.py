"""Runs one rank of test_leaving.py in its own process: exchanges with the others until one of them
leaves or is out of touch, and reports the error. Reports are lines of JSON on standard output. The
rank starts at a line on standard input."""

from __future__ import annotations

import sys
import time

from exchanging_rank import exchange_once, make, say

import tokenyard
from tokenyard.world import end_with_parent

VICTIM = 1


def main(parent: int, rank: int, size: int, port: int, timeout: float, how: str) -> None:
    end_with_parent(parent)
    say(loaded=rank)
    sys.stdin.readline()
    world = tokenyard.World.connect(
        "127.0.0.1", port, rank=rank, size=size, timeout=timeout, arena_bytes=16 << 20
    )
    exchange = make(world)
    for step in range(3):
        assert exchange_once(exchange, world, step)
    say(ready=rank)
    if rank == VICTIM:
        if how == "raises":
            raise KeyError("an ordinary exception")
        if how == "returns":
            return
        if how == "closes":
            exchange = None  # type: ignore[assignment]
            world.close()
            sys.stdin.readline()
            return
        if how == "idle":  # Stopped between its calls.
            sys.stdin.readline()
    begin = time.monotonic()
    try:
        while True:
            begin = time.monotonic()
            assert exchange_once(exchange, world, 1)
    except tokenyard.OutOfTouch as error:
        say(
            error="OutOfTouch",
            sentence=str(error),
            since=error.since,
            absent_s=error.absent_s,
            left_out=error.left_out,
        )
        return
    except (tokenyard.PeerLost, tokenyard.PeerTimeout) as error:
        took_s = time.monotonic() - begin
        say(error=type(error).__name__, rank=error.rank, phase=error.phase, took_s=took_s)
    if how in ("busy", "idle"):
        smaller = world.rebuild(without=[VICTIM])
        say(rebuilt=smaller.size)
    # The first rank to learn of it must not be the next one to leave.
    sys.stdin.readline()


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:5]), timeout=float(sys.argv[5]), how=sys.argv[6])
