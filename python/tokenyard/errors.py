"""The exceptions that Tokenyard raises. Each has fields, from which its message is made.

All derive from `Error`, and from a built-in class that fits, so that `except TimeoutError` works.
They can be pickled, so `launch` passes them on from its processes with all fields.
"""

from __future__ import annotations

from typing import Any


class Error(Exception):
    """Base of all errors of this package."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.__dict__.update(fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), str(self), dict(self.__dict__))


def _restore(kind: type[Error], message: str, fields: dict[str, Any]) -> Error:
    notes = fields.pop("__notes__", [])
    error = kind(message, **fields)
    for note in notes:
        error.add_note(note)
    return error


class InvalidArgument(Error, ValueError):
    """An argument is wrong, by itself or compared with another rank's.

    If this rank's host can see that, it is raised before anything is launched or sent; if only the
    ranks together can, before a row has moved.

    Attributes:
        argument: Name of the argument.
        expected: What it must be.
        seen: What it is.
        rank: The rank that passed it, if not this one.
    """

    argument: str
    expected: str
    seen: str
    rank: int | None


class InvalidGraph(InvalidArgument):
    """A megakernel's graph is wrong. Every rank raises the same, and nothing was launched.

    Attributes:
        fault: Kind of fault, such as "cycle" or "write after read".
        witness: Steps that lead to it: tasks, events, bytes.
        fix: A change that would make the graph right.
    """

    fault: str
    witness: list[str]
    fix: str


class PeerTimeout(Error, TimeoutError):
    """A rank did not answer before the deadline.

    Attributes:
        rank: The rank awaited.
        phase: The step that waited, such as "dispatch: counts".
        expected: The value awaited.
        seen: The value last seen.
        waited_s: Seconds that this rank waited.
    """

    rank: int
    phase: str
    expected: int
    seen: int
    waited_s: float


class TaskTimeout(PeerTimeout):
    """A megakernel's task could not continue before its deadline; `phase` names the task.

    Attributes:
        dump: What each worker of this rank was waiting for, one line per worker.
    """

    dump: str


class PeerLost(Error, ConnectionError):
    """A rank is gone: it has left, or its control connection closed.

    Attributes:
        rank: The rank that is gone.
        phase: The step that waited for it.
        expected: The value awaited.
        seen: The value last seen.
        waited_s: Seconds that this rank waited.
    """

    rank: int
    phase: str
    expected: int
    seen: int
    waited_s: float


class OutOfTouch(Error, ConnectionError):
    """This rank was out of touch with the others; none of them is to blame.

    Either it did not run for a while (it was stopped, or got no CPU), so that its wait failed, or
    the others have rebuilt the world without it.

    Attributes:
        rank: The rank that was awaited, or that has rebuilt the world without this one.
        phase: The step that waited.
        since: Start of the pause, in seconds since 1970; None if this rank has run throughout.
        absent_s: Length of the pause in seconds.
        left_out: Whether the others have rebuilt the world without this rank.
    """

    rank: int
    phase: str
    since: float | None
    absent_s: float
    left_out: bool


class Cancelled(Error):
    """This rank ended the wait itself, by `World.cancel`, `Collectives.cancel` or `close`.

    Attributes:
        phase: The step that waited.
    """

    phase: str


class OperationAborted(Error, RuntimeError):
    """Ranks were lost during a collective operation, so it has not happened on any rank.

    Its inputs are unchanged, and it may be called again once the group works again.

    Attributes:
        operation: Name of the operation, such as "all_reduce".
        sequence: Number of the operation within its group, from 1.
        epoch: Epoch in which ranks were lost; if a root or peer had been lost earlier, the epoch
            before the call's.
        lost: The ranks that are gone.
    """

    operation: str
    sequence: int
    epoch: int
    lost: list[int]


class QuorumLost(Error, ConnectionError):
    """Too few ranks answer to continue: the other ranks may have continued without these.

    Attributes:
        answering: The ranks that answer.
        needed: Number of ranks that must answer.
    """

    answering: list[int]
    needed: int


class Fenced(Error, ConnectionError):
    """The others have continued without this rank, after a silence or by `evict`; it may rejoin.

    Attributes:
        epoch: The first epoch without this rank.
    """

    epoch: int


class NetworkFault(Error):
    """The network refused a request of this rank's kernels, whose key, range or size is wrong.

    Attributes:
        rank: The rank that posted the request.
        peer: The rank to which it went.
        queue: Number among the queues to that rank.
        region: Number of the region: the peer's, or this rank's if `check` is of a source.
        check: The check that failed, such as "target key".
        phase: The step that noticed.
        expected: The key that is registered, or the most bytes allowed.
        seen: The key or the bytes of the request.
        cause: Why a "connection", or the "thread" of the network of rank `peer`, has failed; else
            empty.
    """

    rank: int
    peer: int
    queue: int
    region: int
    check: str
    phase: str
    expected: int
    seen: int
    cause: str


class Unsupported(Error):
    """A feature of the library is not available on this machine or in this build.

    Attributes:
        asked: The feature.
        why: The reason.
    """

    asked: str
    why: str


class OsError(Error, OSError):
    """A system or driver call failed.

    Attributes:
        call: Name of the call.
        code: Error code that it returned.
    """

    call: str
    code: int


class InternalError(Error):
    """An invariant of Tokenyard is broken; please report it."""


class ProcessDied(Error):
    """A rank of `launch` ended without a result.

    Its process was killed, perhaps for lack of memory, or the rank (process or thread) called
    sys.exit.

    Attributes:
        rank: The rank that ended.
        exit_code: Exit status; if a signal killed the process, its negative number.
    """

    rank: int
    exit_code: int


def invalid(argument: str, expected: str, seen: str, rank: int | None = None) -> InvalidArgument:
    """Returns an InvalidArgument with its message, for checks made in Python."""
    whose = "" if rank is None else f" on rank {rank}"
    message = f"{argument}{whose}: expected {expected}, got {seen}"
    return InvalidArgument(message, argument=argument, expected=expected, seen=seen, rank=rank)
