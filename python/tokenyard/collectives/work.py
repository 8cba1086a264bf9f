"""An operation under way."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

import _tokenyard

from ..errors import Error, invalid


class Work:
    """An operation under way. It goes on even if this is dropped, and keeps its arrays alive.

    >>> with tokenyard.Collectives.connect(store, secret="s", rank=0, size=1) as job:
    ...     work = job.world().barrier()
    ...     work.wait()
    ...     work.done()
    True
    """

    __slots__ = ("_native",)

    def __init__(self, native: Any) -> None:
        """Not for callers: operations of a Group return it."""
        self._native: _tokenyard.Work = native

    def wait(self) -> None:
        """Returns once the operation is done on every active rank. Ctrl-C ends the wait.

        Raises:
            OperationAborted: ranks were lost; it has not happened on any rank.
            PeerTimeout: names a rank that did not take part by the deadline.
            InvalidArgument: also where ranks called different things.
            QuorumLost, Fenced: this rank cannot go on.
            Cancelled: by `Collectives.cancel` or `close`.
        """
        self._native.wait()

    def wait_for(self, seconds: float) -> bool:
        """Whether it is done within `seconds`, which may be infinite; raises as `wait` does if it
        went wrong."""
        if not isinstance(seconds, Real) or seconds != seconds:
            raise invalid("seconds", "a number of seconds", repr(seconds))
        return self._native.wait_for(seconds)

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._native.done()

    def error(self) -> Error | None:
        """What went wrong; None while it is under way, and if all went well."""
        try:
            self._native.raise_error()
        except Error as error:
            return error
        return None

    def when_done(self, call: Callable[[], None]) -> None:
        """Calls `call()` once, on the thread that finishes the operation, or now if it is done."""
        self._native.when_done(call)

    def source(self) -> int:
        """Of a receive from any rank that is done: the rank whose message it was."""
        return self._native.source()

    def failed_ranks(self) -> list[int]:
        """Returns the ranks of the group that are missing from what was done, ascending: they were
        lost before. Empty while the operation is under way, and if it failed: then the error names
        them."""
        return self._native.failed_ranks()

    def choice(self) -> str:
        """The algorithm that was chosen, and why."""
        return self._native.choice()

    def __repr__(self) -> str:
        return f"Work({'done' if self.done() else 'under way'})"
