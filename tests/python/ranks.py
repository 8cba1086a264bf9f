"""Ranks of a job of collectives as real processes, which tests may stop, kill and replace."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import tokenyard

LONGEST_S = 120.0
"""Seconds after which any test's rank is killed."""

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["numpy", "ml_dtypes", "tokenyard"])


@contextlib.contextmanager
def world_alone(**options: Any) -> Iterator[tokenyard.World]:
    """A world of one rank, which is this thread. `options`: as `Job.world`."""
    with (
        tokenyard.Collectives.alone(rank=0, size=1) as collectives,
        collectives.job.world(**options) as world,
    ):
        yield world


@contextlib.contextmanager
def world_at(
    port: int, rank: int, size: int, *, arena_bytes: int = 1 << 20, **options: Any
) -> Iterator[tokenyard.World]:
    """A world of a job whose rank 0 serves the store. `options`: as `tokenyard.connect`."""
    store = f"tcp://127.0.0.1:{port}"
    timeout = options.get("timeout", 30.0)
    with (
        tokenyard.connect(store, rank=rank, size=size, host_store=rank == 0, **options) as job,
        job.world(arena_bytes=arena_bytes, timeout=timeout) as world,
    ):
        yield world


class Rank:
    """A process that calls `fn(say, *args)` and sends its words and result to the test."""

    def __init__(self, fn: Callable[..., Any], *args: Any) -> None:
        self.number = args[0] if args else None
        self._inbox, theirs = context.Pipe(duplex=False)
        self.process: ForkServerProcess = context.Process(
            target=_main, args=(theirs, fn, args), daemon=True
        )
        self.process.start()
        theirs.close()

    def hears(self, word: Any, timeout: float = LONGEST_S) -> None:
        """Waits until the rank says `word`."""
        kind, value = self.next_word(timeout)
        assert (kind, value) == ("said", word), f"expected {word!r}, got {kind} {value}"

    def result(self, timeout: float = LONGEST_S) -> Any:
        """Returns the rank's result; fails with its traceback if it raised."""
        ok, value = self.outcome(timeout)
        assert ok, value
        return value

    def outcome(self, timeout: float = LONGEST_S) -> tuple[bool, Any]:
        """Returns True and the rank's result, or False and how it ended instead."""
        kind, value = self.next_word(timeout)
        return (True, value) if kind == "returned" else (False, f"{kind}: {value}")

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self.process.join(10)

    def stop(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def wake(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def end(self) -> None:
        """Kills the process in any state."""
        if self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self.process.join(10)
        self._inbox.close()

    @property
    def _pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def next_word(self, timeout: float = LONGEST_S) -> tuple[str, Any]:
        """Returns what the rank has "said" or "returned", or how it ended."""
        if not self._inbox.poll(timeout):
            raise AssertionError(f"a rank said nothing for {timeout} s")
        try:
            return self._inbox.recv()
        except EOFError:
            self.process.join(10)
            return "died", self.process.exitcode


def _main(home: Connection, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    def say(word: Any) -> None:
        home.send(("said", word))

    try:
        home.send(("returned", fn(say, *args)))
    except BaseException:
        home.send(("raised", traceback.format_exc()))


@contextlib.contextmanager
def ranks_of(fn: Callable[..., Any], size: int, *args: Any) -> Iterator[list[Rank]]:
    """Starts `size` processes that call `fn(say, rank, size, *args)`; ends all of them."""
    ranks = [Rank(fn, rank, size, *args) for rank in range(size)]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


def results(ranks: Iterable[Rank]) -> list[Any]:
    """Returns the result of each; fails with the tracebacks of all that raised."""
    outcomes = [(rank.number, *rank.outcome()) for rank in ranks]
    wrong = [f"rank {number}: {text}" for number, ok, text in outcomes if not ok]
    assert not wrong, "\n".join(wrong)
    return [value for _, _, value in outcomes]


def results_of(fn: Callable[..., Any], size: int, *args: Any) -> list[Any]:
    """Returns results of `fn(say, rank, size, *args)` by rank; fails with all tracebacks."""
    with ranks_of(fn, size, *args) as ranks:
        return results(ranks)


def file_store(folder: Path) -> str:
    """Returns the address of a store that needs no server."""
    return f"file:{folder}/store-{time.monotonic_ns()}"
