"""Runs the ranks of a launch as threads of this process."""

from __future__ import annotations

import errno
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import _tokenyard

from ..errors import OsError
from .outcomes import LISTEN_S, Outcomes, exited
from .world import World

GRACE_S = 1.0
"""Seconds for cancelled ranks to end before they are abandoned."""


def run_threads(
    fn: Callable[..., Any],
    ranks: int,
    hosts: int,
    settings: dict[str, Any],
    args: Sequence[Any],
) -> list[Any]:
    """See `launch`.

    A rank that returns says goodbye at once, but worlds are closed only when all ranks have ended:
    until then peers may read the rank's memory.
    """
    natives = _tokenyard.World.in_process(
        ranks,
        hosts=hosts,
        **settings,
    )
    goodbyes = [native.goodbye() for native in natives]
    worlds = [World(native, settings["device"]) for native in natives]
    ended: queue.SimpleQueue[tuple[int, bool, Any]] = queue.SimpleQueue()

    def run(rank: int) -> None:
        try:
            result = fn(worlds[rank], *args)
            goodbyes[rank]()
            ended.put((rank, True, result))
        except SystemExit as error:  # Raised unchanged, it would end the program silently.
            ended.put((rank, False, exited(rank, error, "thread")))
        except BaseException as error:  # Raised again by the launching thread.
            ended.put((rank, False, error))

    # Daemons: a rank that does not end must not keep the program alive.
    threads = [
        threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True)
        for rank in range(ranks)
    ]
    outcomes = Outcomes(ranks)
    try:
        _start(threads, outcomes)
        while outcomes.running and outcomes.failure is None:
            with suppress(queue.Empty):
                _take(outcomes, ended.get(timeout=LISTEN_S))
    finally:
        # Ranks still run here only after a failure or Ctrl-C.
        if outcomes.running:
            _cancel(worlds, outcomes, ended)
        if not outcomes.running:
            # Join the threads: what they still release needs the interpreter, which must not end
            # meanwhile.
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            for world in worlds:
                world.close()
    return outcomes.results()


def _start(threads: list[threading.Thread], outcomes: Outcomes) -> None:
    for rank, thread in enumerate(threads):
        try:
            thread.start()
        except RuntimeError as error:  # The system has no more threads.
            call = f"start a thread for rank {rank}"
            for missing in range(rank, len(threads)):
                outcomes.raised(missing, OsError(f"{call}: {error}", call=call, code=errno.EAGAIN))
            return


def _take(outcomes: Outcomes, end: tuple[int, bool, Any]) -> None:
    rank, returned, value = end
    if returned:
        outcomes.returned(rank, value)
    else:
        outcomes.raised(rank, value)


def _cancel(
    worlds: list[World],
    outcomes: Outcomes,
    ended: queue.SimpleQueue[tuple[int, bool, Any]],
) -> None:
    """Ends the waits of running ranks; abandons a rank that is busy elsewhere."""
    for rank in outcomes.running:
        worlds[rank]._cancel_all()
    deadline = time.monotonic() + GRACE_S
    while outcomes.running and (left := deadline - time.monotonic()) > 0:
        # Another Ctrl-C would ask for what is already being done.
        with suppress(queue.Empty, KeyboardInterrupt):
            _take(outcomes, ended.get(timeout=left))
