"""Everything that Tokenyard raises. Each class carries fields; the sentence is made from them.

All derive from `Error`, and from the built-in class that fits, so that `except TimeoutError` works.
They survive pickling, and so arrive whole from the processes of `launch`.
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
    """An argument that cannot be right, here or against another rank's.

    Nothing was launched or sent when this rank's host could see it; no row had moved when it took
    the ranks together.

    Attributes:
        argument: The argument's name.
        expected: What it had to be.
        seen: What it was.
        rank: Whose argument, where it is not this rank's own.
    """

    argument: str
    expected: str
    seen: str
    rank: int | None


class InvalidGraph(InvalidArgument):
    """A megakernel's graph cannot work. Every rank is told alike, and nothing was launched.

    Attributes:
        fault: What is wrong with it, as in "cycle" or "write after read".
        witness: What leads there, step by step: tasks, events, bytes.
        fix: What would be right.
    """

    fault: str
    witness: list[str]
    fix: str


class PeerTimeout(Error, TimeoutError):
    """A rank did not answer before the deadline.

    Attributes:
        rank: The rank awaited.
        phase: What was awaited, as in "dispatch: counts".
        expected: The value awaited.
        seen: The value last seen.
        waited_s: How long this rank waited, in seconds.
    """

    rank: int
    phase: str
    expected: int
    seen: int
    waited_s: float


class TaskTimeout(PeerTimeout):
    """A megakernel's task could not go on before its deadline: `phase` names it.

    Attributes:
        dump: What each worker of this rank was waiting for, a line each.
    """

    dump: str


class PeerLost(Error, ConnectionError):
    """A rank is gone: it has left, or its control connection closed.

    Attributes:
        rank: The rank that is gone.
        phase: What was awaited of it.
        expected: The value awaited.
        seen: The value last seen.
        waited_s: How long this rank waited, in seconds.
    """

    rank: int
    phase: str
    expected: int
    seen: int
    waited_s: float


class OutOfTouch(Error, ConnectionError):
    """This rank has not run for a while (it was stopped, or got no CPU), so that its wait failed;
    or the others have rebuilt the world without it. No other rank is to blame."""

    rank: int
    """The rank that was awaited, or that has rebuilt the world without this one."""
    phase: str
    """What was awaited."""
    since: float | None
    """When this rank ran last before it did not, in seconds since 1970; None if it has run."""
    absent_s: float
    """For how long it did not run, in seconds."""
    left_out: bool
    """Whether the others have rebuilt the world without this rank."""


class Cancelled(Error):
    """The wait was ended from this side, by `World.cancel`.

    Attributes:
        phase: What was awaited.
    """

    phase: str


class OperationAborted(Error, RuntimeError):
    """Ranks were lost in a collective operation, so it has not happened on any rank.

    Its inputs are as they were, and it may be called again once the group works again.

    Attributes:
        operation: Which, as in "all_reduce".
        sequence: Its number within its group, from 1.
        epoch: In which ranks were lost; of a root or peer that had long been, the one before the
            call's.
        lost: The ranks that are gone.
    """

    operation: str
    sequence: int
    epoch: int
    lost: list[int]


class QuorumLost(Error, ConnectionError):
    """Too few ranks answer to go on: it might be the others that are right.

    Attributes:
        answering: The ranks that do answer.
        needed: How many would have to.
    """

    answering: list[int]
    needed: int


class Fenced(Error, ConnectionError):
    """The others have gone on without this rank, which had been silent for too long.

    It may join again.

    Attributes:
        epoch: The first epoch without it.
    """

    epoch: int


class Unsupported(Error):
    """What was asked for exists, but not here.

    Attributes:
        asked: What was asked for.
        why: Why it is not to be had here.
    """

    asked: str
    why: str


class OsError(Error, OSError):
    """A system or driver call failed.

    Attributes:
        call: The call.
        code: Its error code.
    """

    call: str
    code: int


class InternalError(Error):
    """A broken invariant of Tokenyard's own: please report it."""


class ProcessDied(Error):
    """A rank's process in `launch` ended without a word: killed, perhaps out of memory. Or the
    rank, be it a thread, called sys.exit.

    Attributes:
        rank: The rank whose process or thread it was.
        exit_code: As multiprocessing has it: the negative number of the signal that killed it.
    """

    rank: int
    exit_code: int


def invalid(argument: str, expected: str, seen: str, rank: int | None = None) -> InvalidArgument:
    """An InvalidArgument with its sentence, for what Python sees before C++ does."""
    whose = "" if rank is None else f" on rank {rank}"
    message = f"{argument}{whose}: expected {expected}, got {seen}"
    return InvalidArgument(message, argument=argument, expected=expected, seen=seen, rank=rank)
