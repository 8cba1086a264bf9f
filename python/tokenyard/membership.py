"""One rank's membership in a job: the calls that a Job and its Collectives share."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from os import PathLike
from types import TracebackType
from typing import Any, Self

import _tokenyard

from .closing import Closing
from .secret import secret_or_none
from .sizes import size_of, text_of
from .world.world import DEFAULT_TIMEOUT, check_timeout

DEFAULT_SILENCE = 5.0
"""Seconds without a heartbeat after which a rank counts as gone, by default."""
EAGER_LIMIT_MAX = 8192
"""Largest `eager_limit`, in bytes."""

_open: weakref.WeakSet[Members] = weakref.WeakSet()


class Members(Closing):
    """A handle of this rank's membership in a job."""

    def __init__(self, native: Any, *, founds: bool = True) -> None:
        """Wraps a native job; not for users.

        Args:
            founds: whether the rank's membership ends with this handle.
        """
        self._native: _tokenyard.Job = native
        self._founds = founds
        _open.add(self)

    @classmethod
    def _enter(
        cls,
        entrance: str,
        store: str,
        secret: str | None,
        rank: int,
        size: int,
        *,
        secret_file: str | PathLike[str] | None = None,
        local_rank: int | None = None,
        job: str = "tokenyard",
        size_max: int | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        silence: float = DEFAULT_SILENCE,
        on_failure: str = "raise",
        places: str = "kept",
        eager_limit: int = EAGER_LIMIT_MAX,
        witness: bool = True,
        host_store: bool = True,
        address: str = "",
        host: str = "",
        own_store: Any = None,
    ) -> Self:
        ranks = size_of("size", size, smallest=1)
        most = ranks if size_max is None else size_of("size_max", size_max, smallest=ranks)
        native = _tokenyard.Job.enter(
            entrance=entrance,
            store=store if own_store is not None else text_of("store", store),
            own_store=own_store,
            host_store=host_store,
            job=text_of("job", job),
            secret=secret_or_none(secret, secret_file) or "",
            rank=size_of("rank", rank, largest=most - 1),
            size=ranks,
            local_rank=None if local_rank is None else size_of("local_rank", local_rank),
            size_max=most,
            address=address,
            host=host,
            timeout_s=check_timeout(timeout),
            silence_s=check_timeout(silence, "silence"),
            on_failure=on_failure,
            places=places,
            eager_limit=size_of("eager_limit", eager_limit, largest=EAGER_LIMIT_MAX),
            witness=witness,
        )
        return cls(native)

    @property
    def rank(self) -> int:
        """Index of this rank in the job."""
        return self._native.rank

    @property
    def size(self) -> int:
        """Number of places in the job, taken or empty."""
        return self._native.size

    def active_ranks(self) -> list[int]:
        """Returns the ranks that are members now, ascending; none once this rank is fenced."""
        return self._native.active_ranks()

    def epoch(self) -> int:
        """Returns the number of the current membership; it rises with every change, from 1."""
        return self._native.epoch()

    def on_change(self, call: Callable[[], None]) -> _tokenyard.Listening:
        """Calls `call()` after every change of the membership, until the result is dropped.

        `call` runs on a thread of the library and must not wait for operations.
        """
        return self._native.on_change(call)

    def shrink(self) -> list[int]:
        """Continues without the lost ranks; waits until every survivor has called it.

        All groups work again afterwards, and no later operation fails because of an earlier
        failure on any rank. An operation that was called before, and whose root is lost, may still
        fail, with an `OperationAborted` whose epoch is below `epoch()`: that needs no other shrink.

        Returns:
            The ranks that continue, ascending, the same on all of them.

        Raises:
            PeerTimeout: a rank has not called it in time.
            QuorumLost: too few ranks answer.
        """
        return self._went_on(self._native.shrink())

    def recover(
        self, *, wait_for_replacements: bool = False, timeout: float | None = None
    ) -> list[int]:
        """Continues with the current members, after which all groups work again.

        Ranks need not pair their recovery calls: it returns whatever the others have called and
        whenever, at once if they have already recovered. Only after a PeerTimeout, which perhaps
        not every rank has seen, does it wait until all ranks have called it, as `shrink` does.

        Args:
            wait_for_replacements: whether to wait until new processes hold all empty places.
            timeout: seconds; None for the job's.

        Returns:
            The members, ascending.

        Raises:
            PeerTimeout: a rank did not join, or did not call it, in time; names it.
            QuorumLost: too few ranks answer.
        """
        limit = None if timeout is None else check_timeout(timeout)
        members = self._native.recover(wait_for_replacements=wait_for_replacements, timeout_s=limit)
        return self._went_on(members)

    def _went_on(self, members: list[int]) -> list[int]:
        """Returns the members that go on, once whoever started them knows."""
        return members

    def replace(self, rank: int, *, timeout: float | None = None) -> None:
        """Waits until a new process has taken a lost rank's place by `join`.

        Returns at once if one has joined since the loss, whichever rank admitted it. Every
        survivor calls it for each lost rank, in any order: a group works again once all its lost
        ranks are replaced. A rank that is not lost yields its place to the next process that asks
        for it.

        Raises:
            PeerTimeout: no process joined in time.
        """
        limit = None if timeout is None else check_timeout(timeout)
        self._native.replace(size_of("rank", rank), timeout_s=limit)

    def grow(self, ranks: int, *, timeout: float | None = None) -> None:
        """Waits until `ranks` more ranks have joined than earlier calls asked for.

        Returns at once if they have. Groups that stopped after a failure stay stopped. Every
        member calls it; a new rank counts from the ranks that were there before it, plus itself.

        Raises:
            PeerTimeout: too few ranks joined in time.
        """
        limit = None if timeout is None else check_timeout(timeout)
        self._native.grow(size_of("ranks", ranks, smallest=1), timeout_s=limit)

    def evict(self, rank: int, *, timeout: float | None = None) -> None:
        """Evicts a running rank: it gets Fenced, and counts as lost on all others.

        One rank's call is enough. Operations of the others raise OperationAborted as for any lost
        rank; all of them, the caller too, continue by `recover`, `shrink` or `replace`.

        Raises:
            InvalidArgument: `rank` is the caller, or too few ranks would remain.
            PeerTimeout: the ranks did not agree in time.
        """
        limit = None if timeout is None else check_timeout(timeout)
        self._native.evict(size_of("rank", rank), timeout_s=limit)

    def leave(self) -> None:
        """Leaves the job once all messages that this rank has sent are received.

        Other operations in progress fail with Cancelled. The remaining ranks continue without an
        error after `shrink`, or at once under on_failure="exclude".

        Raises:
            PeerTimeout: a rank has not received a message in time. This rank has left anyway.
        """
        self._native.leave()

    def cancel(self) -> None:
        """Ends every wait on this rank with Cancelled."""
        self._native.cancel()

    def close(self) -> None:
        """Ends this rank's membership; a second call does nothing.

        Operations in progress fail with Cancelled. A handle that a world or a job has given ends
        nothing; and worlds of the job keep it until they are closed.
        """
        self._native.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._founds and not self._native.closed:
                self.leave()
        finally:
            super().__exit__(kind, error, trace)

    def __repr__(self) -> str:
        name = type(self).__name__
        if self._native.closed:
            return f"{name}(closed)"
        return f"{name}(rank={self.rank}, size={self.size}, epoch={self.epoch()})"


@atexit.register
def _close_all() -> None:
    """Closes all jobs before the interpreter goes, which their threads may call."""
    for members in list(_open):
        members.close()
