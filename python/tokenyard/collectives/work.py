"""A handle to a collective operation in progress."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

import _tokenyard

from ..errors import Error, invalid


class Work:
    """A handle to a collective operation. All methods are safe to call from any thread.

    The operation continues if the handle is dropped, and keeps its arrays alive until it ends.

    >>> with tokenyard.Collectives.connect(store, secret="s", rank=0, size=1) as job:
    ...     work = job.world().barrier()
    ...     work.wait()
    ...     work.done()
    True
    """

    __slots__ = ("_native",)

    def __init__(self, native: Any) -> None:
        """Wraps a native operation; not for users: see the operations of `Group`."""
        self._native: _tokenyard.Work = native

    def wait(self) -> None:
        """Blocks until the operation is done on every active rank; Ctrl-C ends the wait.

        Raises:
            OperationAborted: ranks were lost; the operation has not happened on any rank.
            PeerTimeout: a rank did not take part by the deadline; names it.
            InvalidArgument: arguments are wrong, or ranks called different operations.
            QuorumLost, Fenced: this rank cannot continue.
            Cancelled: by `Collectives.cancel` or `close`.
        """
        self._native.wait()

    def wait_for(self, seconds: float) -> bool:
        """Blocks for at most `seconds` (may be infinite); returns whether the operation is done.

        Raises:
            As `wait`, if the operation failed.
        """
        if not isinstance(seconds, Real) or seconds != seconds:
            raise invalid("seconds", "a number of seconds", repr(seconds))
        return self._native.wait_for(seconds)

    def done(self) -> bool:
        """Returns whether the operation has ended, in success or failure, without waiting."""
        return self._native.done()

    def error(self) -> Error | None:
        """Returns the operation's error; None while it is in progress, and after success."""
        try:
            self._native.raise_error()
        except Error as error:
            return error
        return None

    def when_done(self, call: Callable[[], None]) -> None:
        """Calls `call()` once, on the thread that ends the operation, or now if it has ended."""
        self._native.when_done(call)

    def source(self) -> int:
        """Returns the sender of a completed `receive`; needed where that named no source."""
        return self._native.source()

    def failed_ranks(self) -> list[int]:
        """Returns the ranks of the group that are missing from the result, ascending.

        They were lost before the operation. Empty while it is in progress, and if it failed: then
        the error names the lost ranks.
        """
        return self._native.failed_ranks()

    def choice(self) -> str:
        """Returns the algorithm that was chosen, and why."""
        return self._native.choice()

    def __repr__(self) -> str:
        return f"Work({'done' if self.done() else 'under way'})"
