"""Runs the ranks of a launch as processes."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import secrets
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

import _tokenyard

from ..errors import Error, Fenced, OsError, OutOfTouch, PeerLost, ProcessDied, invalid
from .launched import Launched
from .network import NetworkOptions
from .outcomes import LISTEN_S, Outcomes, exited
from .world import World

GRACE_S = 0.5
"""Seconds between SIGTERM and SIGKILL."""
POLL_S = 0.005
"""Seconds between checks whether a process has ended."""
LEAVING_S = 5.0
"""Seconds for a process to exit after it has sent its result."""
ENDING_S = 10.0
"""Seconds for a process to be gone after SIGKILL or after it closed its pipe; generous."""
CAUSE_S = 2.0
"""Seconds from the report of a lost rank until the end of its process is visible; generous."""
LEFT_OUT_S = 5.0
"""Seconds for a rank that was left out to end by itself after the others."""
PR_SET_PDEATHSIG = 1


def run_processes(
    fn: Callable[..., Any],
    ranks: int,
    settings: dict[str, Any],
    args: Sequence[Any],
    on_death: str = "end",
    hosts: int = 1,
    network: NetworkOptions | None = None,
) -> list[Any]:
    """See `launch`."""
    return _Launch(fn, ranks, settings, tuple(args), on_death, hosts, network).run()


class _Launch:
    """The processes of a launch, and their outcomes."""

    def __init__(
        self,
        fn: Callable[..., Any],
        ranks: int,
        settings: dict[str, Any],
        args: tuple[Any, ...],
        on_death: str,
        hosts: int,
        network: NetworkOptions | None,
    ) -> None:
        self._context = multiprocessing.get_context("spawn")  # Forks lose CUDA and threads.
        self._work = (fn, settings, args)
        self._ranks = ranks
        parts = range(ranks) if hosts > 1 else ()
        self._host_names = tuple(f"host {rank * hosts // ranks}" for rank in parts)
        self._network = network
        self._secret = secrets.token_hex(16)
        self._on_death = on_death
        self._outcomes = Outcomes(ranks)
        self._children: dict[Connection, tuple[int, SpawnProcess]] = {}
        self._past: list[SpawnProcess] = []
        """Processes that were replaced."""
        self._left_out: dict[int, float] = {}
        """Ranks without which the others have rebuilt their world, and the time of that."""
        self._killed: set[int] = set()
        """Those of them that the launch has killed."""
        self._replaced: set[int] = set()
        """Numbers of the processes that were replaced, as their job knows them."""

    def run(self) -> list[Any]:
        outcomes = self._outcomes
        # Not in a rank: any of them may die.
        store = _tokenyard.StoreServer(host="127.0.0.1", port=0, secret=self._secret)
        self._port = store.port
        everybody = list(range(self._ranks))
        try:
            self._start(everybody, everybody, new=False)
            while outcomes.running and outcomes.failure is None:
                self._listen()
                self._end_who_was_left_out()
        finally:
            done = not outcomes.running and outcomes.failure is None
            last = [child for _, child in self._children.values()]
            _end([*self._past, *last], LEAVING_S if done else 0.0)
            for pipe in self._children:
                pipe.close()
            store.close()
        return outcomes.results()

    def _start(self, starting: Iterable[int], slots: list[int], new: bool) -> None:
        """Starts processes as these ranks of a world, whose ranks have these `slots`."""
        for slot in starting:
            ours, theirs = _pipe(self._context, slot)
            with theirs:  # Only the process keeps it open.
                launched = Launched(
                    theirs,
                    self._port,
                    self._ranks,
                    slots,
                    self._on_death == "replace",
                    self._secret,
                    new,
                    self._host_names,
                    self._network,
                )
                child = self._context.Process(
                    target=_rank_main,
                    args=(launched, os.getpid(), slot, *self._work),
                    name=f"rank {slot}",
                    daemon=True,
                )
                self._children[ours] = (slot, child)
                _start(child, slot)

    def _listen(self) -> None:
        """Waits for a message of a rank, for at most LISTEN_S, and handles all messages."""
        outcomes = self._outcomes
        running = [pipe for pipe, (rank, _) in self._children.items() if rank in outcomes.running]
        wait(running, LISTEN_S)
        heard: dict[Connection, Word] = {}
        deadline = time.monotonic() + CAUSE_S
        while True:
            for pipe in running:
                if pipe not in heard and (word := _word(*self._children[pipe], pipe)) is not None:
                    heard[pipe] = word
            if not self._cause_is_missing(heard) or time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
        for pipe, word in sorted(heard.items(), key=lambda said: said[1].at_ns):
            if pipe in self._children:  # If not, its process has just been replaced.
                self._take(word)

    def _cause_is_missing(self, heard: dict[Connection, Word]) -> bool:
        """Returns whether a rank reports the loss of another whose process has not reported yet.

        A process that dies closes its connections some time before its parent can see its end, so
        the consequence may arrive before the cause. The cause is what a launch raises.
        """
        unheard = {rank for pipe, (rank, _) in self._children.items() if pipe not in heard}
        silent = unheard & self._outcomes.running
        return any(
            word.kind == "raised" and isinstance(word.value, PeerLost) and word.value.rank in silent
            for word in heard.values()
        )

    def _take(self, word: Word) -> None:
        if word.kind == "returned":
            self._outcomes.returned(word.rank, word.value)
        elif word.kind == "raised":
            self._take_failure(word.rank, word.value)
        elif word.kind == "left_out":
            for rank in word.value:
                self._left_out.setdefault(rank, time.monotonic())
        else:
            self._replace(*word.value)

    def _take_failure(self, rank: int, error: BaseException) -> None:
        # The failure of a rank that was left out does not concern the others.
        dead = isinstance(error, (ProcessDied, OutOfTouch, Fenced)) or rank in self._left_out
        if rank in self._killed:
            error.add_note("by the launch: the other ranks had gone on without it, and ended")
        if self._on_death != "end" and dead:
            self._outcomes.died(rank, error)
        else:
            self._outcomes.raised(rank, error)

    def _replace(self, slots: list[int], lost: dict[int, int]) -> None:
        """Kills the processes of lost ranks, and starts new ones; of each once.

        Args:
            slots: [ranks] of the world in which they are replaced.
            lost: the number of the lost process of each rank, as its job knows it.
        """
        starting = []
        for pipe, (slot, child) in list(self._children.items()):
            if slot not in lost or (lost[slot] in self._replaced and child.exitcode is None):
                continue
            child.kill()
            pipe.close()
            self._past.append(child)
            del self._children[pipe]
            starting.append(slot)
            self._left_out.pop(slot, None)
            self._outcomes.replaced(slot)
        self._replaced.update(lost.values())
        self._start(sorted(starting), slots, new=True)

    def _end_who_was_left_out(self) -> None:
        """Kills left-out ranks once all others have ended: a stopped process never would."""
        running = self._outcomes.running
        if not running or not running <= self._left_out.keys():
            return
        if time.monotonic() - max(self._left_out[rank] for rank in running) < LEFT_OUT_S:
            return
        for rank, child in self._children.values():
            if rank in running:
                child.kill()
                self._killed.add(rank)


def _pipe(context: SpawnContext, rank: int) -> tuple[Connection, Connection]:
    try:
        return context.Pipe(duplex=False)
    except OSError as error:
        raise _os_error(f"make a pipe for rank {rank}", error) from error


def _start(child: SpawnProcess, rank: int) -> None:
    try:
        with _interrupts_later():
            child.start()
    except OSError as error:
        raise _os_error(f"start a process for rank {rank}", error) from error
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        sendable = "a function and args that pickle can send to a process"
        raise invalid("fn", sendable, str(error)) from error


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Defers Ctrl-C to the end of a block that starts a process.

    In the middle of a start it would leave a process that the launch does not know. The process
    inherits the mask, since it would print a traceback while it imports.
    """
    resource_tracker.ensure_running()  # Starting it later would unmask SIGINT.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # Another thread may still receive the signal; Python then calls the handler in this one.
    came: list[int] = []
    handler = signal.getsignal(signal.SIGINT)  # None: not Python's, which then raises nothing.
    is_ours = handler is not None and threading.current_thread() is threading.main_thread()
    if is_ours:
        signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _os_error(call: str, error: OSError) -> OsError:
    told = f"{call} failed with {error.errno}: {error.strerror}"
    return OsError(told, call=call, code=error.errno)


@dataclass(frozen=True)
class Word:
    """A message of a rank's process: its outcome, or a request to the launch."""

    rank: int
    at_ns: int
    """Time of sending on the machine's monotonic clock; 0 if the process could not send."""
    kind: str
    """"returned", "raised", "left_out" or "replace"."""
    value: Any
    """The result, the exception, the ranks left out, or the arguments of `_Launch._replace`."""


def _word(rank: int, child: SpawnProcess, pipe: Any) -> Word | None:
    """Returns the rank's next message; None while it has none and runs."""
    # The exit code first: whatever a process that has ended has sent is then in the pipe. The pipe
    # itself may stay open, if a process that it forked lives on.
    ended = child.exitcode is not None
    if pipe.poll():
        return _hear(rank, child, pipe)
    return _died(rank, child) if ended else None


def _hear(rank: int, child: SpawnProcess, pipe: Any) -> Word:
    """Returns the message in the pipe, or the death of a process that sent none."""
    try:
        message = pipe.recv_bytes()
    except (EOFError, OSError):  # OSError if it ended while it was sending.
        return _died(rank, child)
    try:
        at_ns, kind, value = pickle.loads(message)
    except Exception as error:
        error.add_note(f"while reading what rank {rank} returned")
        return Word(rank, 0, "raised", error)
    if kind == "raised":
        value, trace = value
        value.add_note(f"in its process:\n{trace}")
    return Word(rank, at_ns, kind, value)


def _died(rank: int, child: SpawnProcess) -> Word:
    """Returns the death of a process that has ended, or closed its pipe, without a message."""
    _await_ends([child], ENDING_S)
    code = child.exitcode
    if code is None:  # The launch will kill it, hence the code.
        how, code = "closed its pipe and does not end", -signal.SIGKILL
    elif code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    else:
        how = f"exited with {code}"
    died = ProcessDied(f"the process of rank {rank} {how}", rank=rank, exit_code=code)
    return Word(rank, 0, "raised", died)


def _end(children: list[SpawnProcess], timeout_s: float) -> None:
    """Waits `timeout_s` for processes to exit, then sends SIGTERM, then SIGKILL."""
    running = [child for child in children if child.pid is not None]
    for act, wait_s in (
        (lambda child: None, timeout_s),
        (SpawnProcess.terminate, GRACE_S),
        (SpawnProcess.kill, ENDING_S),
    ):
        for child in running:
            act(child)
        running = _await_ends(running, wait_s)


def _await_ends(children: list[SpawnProcess], seconds: float) -> list[SpawnProcess]:
    """Waits at most `seconds`; returns the processes that have not ended.

    `Process.join` will not do: it takes a process that has closed its files for one that ends, and
    then waits for it without a timeout.
    """
    deadline = time.monotonic() + seconds
    while running := [child for child in children if child.exitcode is None]:
        if time.monotonic() >= deadline:
            return running
        time.sleep(POLL_S)
    return []


def _rank_main(
    launched: Launched,
    parent: int,
    slot: int,
    fn: Callable[..., Any],
    settings: dict[str, Any],
    args: tuple[Any, ...],
) -> None:
    """Runs a rank's program from the start of its process to the end."""
    end_with_parent(parent)
    # A daemon to its parent, which ends it; but it may have children, such as a DataLoader's.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent handles Ctrl-C, and ends us.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, _leave)
    home = launched.home
    try:
        with World(launched.connect(slot, settings), settings["device"], launched) as world:
            # Sent before this rank leaves the world, which makes others fail: their failures must
            # arrive later than this message.
            home.send_bytes(_message_of_end(fn, world, args))
    except Exception as error:
        home.send_bytes(_message_of(error))
    # An exception during the interpreter's shutdown would be printed.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    home.close()


def _message_of_end(fn: Callable[..., Any], world: World, args: tuple[Any, ...]) -> bytes:
    try:
        result = fn(world, *args)
        return _message_of_result(world.rank, result)
    except SystemExit as ended:
        # Now, before the world is left: failures of the other ranks must arrive later.
        return _message_of(exited(world.rank, ended, "process"))
    except BaseException as error:
        return _message_of(error)


def _message_of_result(rank: int, result: Any) -> bytes:
    try:
        return pickle.dumps((time.monotonic_ns(), "returned", result))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        sendable = "what pickle can send home from a process"
        raise invalid(f"what fn returned on rank {rank}", sendable, str(error)) from error


def _message_of(error: BaseException) -> bytes:
    """Returns the message of an exception with its trace; as text if it cannot be pickled."""
    at_ns = time.monotonic_ns()
    trace = traceback.format_exc()
    try:
        message = pickle.dumps((at_ns, "raised", (error, trace)))
        pickle.loads(message)
        return message
    except Exception:
        told = Error(f"{type(error).__name__}: {error}")
        return pickle.dumps((at_ns, "raised", (told, trace)))


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def end_with_parent(parent: int) -> None:
    """Asks Linux to kill this process when its parent dies, however it dies.

    For programs that start ranks themselves: each rank calls it first.

    Args:
        parent: process id of the parent, which the parent passed to this process.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # The parent died before the request.
        os._exit(1)
