"""A process for each rank."""

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from .errors import Error, OsError, ProcessDied, invalid
from .outcomes import LISTEN_S, Outcomes, exited
from .rendezvous import HeldPort
from .world import World

GRACE_S = 0.5
"""Between asking a process to end and killing it."""
POLL_S = 0.005
"""Between looks whether a process has ended."""
LEAVING_S = 5.0
"""For a process that has sent its result home to leave its interpreter."""
ENDING_S = 10.0
"""For a process that has been killed, or has closed its pipe, to be gone: longer than it takes."""
PR_SET_PDEATHSIG = 1


def run_processes(
    fn: Callable[..., Any], ranks: int, settings: dict[str, Any], args: Sequence[Any]
) -> list[Any]:
    """See `launch`."""
    context = multiprocessing.get_context("spawn")  # CUDA and threads do not survive a fork.
    port = HeldPort()
    job = secrets.token_hex(8)
    children: dict[Connection, tuple[int, SpawnProcess]] = {}
    outcomes = Outcomes(ranks)
    try:
        for rank in range(ranks):
            ours, theirs = _pipe(context, rank)
            place = dict(
                host="127.0.0.1", port=port.number, rank=rank, size=ranks, local_rank=rank, job=job
            )
            child = context.Process(
                target=_rank_main,
                args=(theirs, os.getpid(), fn, place, settings, tuple(args)),
                name=f"rank {rank}",
                daemon=True,
            )
            children[ours] = (rank, child)
            _start(child, rank)
            theirs.close()
        while outcomes.running and outcomes.failure is None:
            running = [pipe for pipe, (rank, _) in children.items() if rank in outcomes.running]
            wait(running, LISTEN_S)
            # Looked at again, since a first look that finds a failure may just have missed its
            # cause, which was sent before.
            endings = [_ending(*children[pipe], pipe) for pipe in running]
            heard = [ending for ending in endings if ending is not None]
            for ending in sorted(heard, key=lambda ending: ending.at_ns):
                _take(outcomes, ending)
    finally:
        port.release()
        done = not outcomes.running and outcomes.failure is None
        _end([child for _, child in children.values()], LEAVING_S if done else 0.0)
        for pipe in children:
            pipe.close()
    return outcomes.results()


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
    """Puts Ctrl-C off to the end of a block that starts a process.

    In the midst of a start it would leave a process that nobody knows to end. The process itself
    inherits the mask: one that is still importing would print a traceback of its own.
    """
    resource_tracker.ensure_running()  # Its start unmasks SIGINT.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # Another thread may receive the signal all the same; Python then calls its handler here.
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
class Ending:
    """How a rank's program came to its end."""

    rank: int
    at_ns: int
    """On the clock that all processes of a machine share; 0 for one that could not tell."""
    returned: bool
    value: Any
    """What it returned, or the exception."""


def _ending(rank: int, child: SpawnProcess, pipe: Any) -> Ending | None:
    """None while the rank is at work."""
    # In this order: what a process has sent before it ended is in the pipe by now. The pipe itself
    # may stay open, where a process that it forked lives on.
    ended = child.exitcode is not None
    if pipe.poll():
        return _hear(rank, child, pipe)
    return _died(rank, child) if ended else None


def _hear(rank: int, child: SpawnProcess, pipe: Any) -> Ending:
    """What a rank sent home, or the silence in which its process ended."""
    try:
        message = pipe.recv_bytes()
    except (EOFError, OSError):  # The latter where it ended in the midst of sending.
        return _died(rank, child)
    try:
        at_ns, returned, value = pickle.loads(message)
    except Exception as error:
        error.add_note(f"while reading what rank {rank} returned")
        return Ending(rank, 0, False, error)
    if returned:
        return Ending(rank, at_ns, True, value)
    thrown, trace = value
    thrown.add_note(f"in its process:\n{trace}")
    return Ending(rank, at_ns, False, thrown)


def _died(rank: int, child: SpawnProcess) -> Ending:
    """Of a process that has ended without a word, or closed its pipe."""
    _await_ends([child], ENDING_S)
    code = child.exitcode
    if code is None:  # It is killed in the end, which is what the code says.
        how, code = "closed its pipe and does not end", -signal.SIGKILL
    elif code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    else:
        how = f"exited with {code}"
    died = ProcessDied(f"the process of rank {rank} {how}", rank=rank, exit_code=code)
    return Ending(rank, 0, False, died)


def _take(outcomes: Outcomes, ending: Ending) -> None:
    if ending.returned:
        outcomes.returned(ending.rank, ending.value)
    else:
        outcomes.raised(ending.rank, ending.value)


def _end(children: list[SpawnProcess], patience_s: float) -> None:
    """Waits for processes that leave by themselves, asks the others to, kills the rest."""
    running = [child for child in children if child.pid is not None]
    for act, wait_s in (
        (lambda child: None, patience_s),
        (SpawnProcess.terminate, GRACE_S),
        (SpawnProcess.kill, ENDING_S),
    ):
        for child in running:
            act(child)
        running = _await_ends(running, wait_s)


def _await_ends(children: list[SpawnProcess], seconds: float) -> list[SpawnProcess]:
    """Those that have not ended by then. (`join` with a timeout believes that a process which has
    closed its files is at its end, and then waits for that without one.)"""
    deadline = time.monotonic() + seconds
    while running := [child for child in children if child.exitcode is None]:
        if time.monotonic() >= deadline:
            return running
        time.sleep(POLL_S)
    return []


def _rank_main(
    home: Connection,
    parent: int,
    fn: Callable[..., Any],
    place: dict[str, Any],
    settings: dict[str, Any],
    args: tuple[Any, ...],
) -> None:
    """The whole life of a rank's process."""
    _die_with(parent)
    # It is one for its parent, which ends it. It may have children of its own: a DataLoader's.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends us.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, _leave)
    try:
        with World.connect(**place, **settings) as world:
            # Before the world is left: that makes others fail, who must not be heard first.
            home.send_bytes(_message_of_end(fn, world, args))
    except Exception as error:
        home.send_bytes(_message_of(error))
    # What is left is the interpreter's own end: an exception in the midst of it would be printed.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    home.close()


def _message_of_end(fn: Callable[..., Any], world: World, args: tuple[Any, ...]) -> bytes:
    try:
        result = fn(world, *args)
        return _message_of_result(world.rank, result)
    except SystemExit as ended:
        # Now: the other ranks, which it leaves behind, must not be heard first.
        return _message_of(exited(world.rank, ended, "process"))
    except BaseException as error:
        return _message_of(error)


def _message_of_result(rank: int, result: Any) -> bytes:
    try:
        return pickle.dumps((time.monotonic_ns(), True, result))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        sendable = "what pickle can send home from a process"
        raise invalid(f"what fn returned on rank {rank}", sendable, str(error)) from error


def _message_of(error: BaseException) -> bytes:
    """The exception with its trace, as text where it is of a kind that cannot travel."""
    at_ns = time.monotonic_ns()
    trace = traceback.format_exc()
    try:
        message = pickle.dumps((at_ns, False, (error, trace)))
        pickle.loads(message)
        return message
    except Exception:
        told = Error(f"{type(error).__name__}: {error}")
        return pickle.dumps((at_ns, False, (told, trace)))


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def _die_with(parent: int) -> None:
    """Asks Linux to kill this process when its parent dies, however it dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It died before it was asked.
        os._exit(1)
