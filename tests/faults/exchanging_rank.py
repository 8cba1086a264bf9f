"""Runs one rank of test_kill.py in its own process: exchanges until a peer is gone, reports the
error, and continues without that peer. Reports are lines of JSON on standard output. The rank
starts at a line on standard input, so that no deadline includes the time to load."""

from __future__ import annotations

import ctypes
import gc
import json
import signal
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np

import tokenyard

HIDDEN, TOKENS = 64, 32


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def shared_mappings() -> int:
    """Returns the number of peer-visible memory mappings of this process, found as memfds."""
    maps = Path("/proc/self/maps").read_text()
    return sum("memfd:" in line for line in maps.splitlines())


def exchange_once(exchange: tokenyard.ExpertParallel, world: tokenyard.World, step: int) -> bool:
    """Sends every token to every rank and back; returns whether the sums are right."""
    x = np.full((TOKENS, HIDDEN), step % 16 + 1, ml_dtypes.bfloat16)
    topk_idx = np.tile(np.arange(world.size), (TOKENS, 1))
    received = exchange.dispatch(x, topk_idx, np.ones(topk_idx.shape, np.float32))
    out = exchange.combine(received.x, received.route)
    return bool((out == x.astype(np.float32) * world.size).all())


def make(world: tokenyard.World) -> tokenyard.ExpertParallel:
    return tokenyard.ExpertParallel(
        world, experts=world.size, hidden=HIDDEN, topk=world.size, tokens_max=TOKENS
    )


def main(rank: int, size: int, port: int, victim: int, timeout: float, busy: bool) -> None:
    say(loaded=rank)
    sys.stdin.readline()
    world = tokenyard.World.connect(
        "127.0.0.1", port, rank=rank, size=size, timeout=timeout, arena_bytes=64 << 20
    )
    exchange = make(world)
    assert exchange_once(exchange, world, 0)
    world.barrier("everybody has exchanged once")
    say(ready=rank)
    if rank == victim and not busy:
        time.sleep(600)  # Meanwhile the others wait in a dispatch.

    step = 1
    begin = time.monotonic()
    try:
        while True:
            begin = time.monotonic()
            assert exchange_once(exchange, world, step)
            step += 1
    except (tokenyard.PeerLost, tokenyard.PeerTimeout) as error:
        say(
            error=type(error).__name__,
            rank=error.rank,
            phase=error.phase,
            sentence=str(error),
            took_s=time.monotonic() - begin,
        )

    smaller = world.rebuild(without=[victim])
    exchange.close()
    world.close()
    del exchange, world
    gc.collect()
    exchange = make(smaller)
    right = all(exchange_once(exchange, smaller, step) for step in range(20))
    say(rebuilt=smaller.size, right=right, mappings=shared_mappings())
    smaller.barrier("before leaving")
    exchange.close()
    smaller.close()
    del exchange, smaller
    gc.collect()
    say(mappings=shared_mappings())


if __name__ == "__main__":
    # Ends with the test process, however that ends: 1 is PR_SET_PDEATHSIG.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    main(
        *(int(word) for word in sys.argv[1:5]),
        timeout=float(sys.argv[5]),
        busy=sys.argv[6] == "busy",
    )
