"""One rank's membership in a job whose ranks may die, hang, leave and join."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Sequence
from os import PathLike
from secrets import token_hex
from types import TracebackType
from typing import Any, Self, Unpack

import _tokenyard

from ..closing import Closing
from ..secret import secret_of
from ..sizes import size_of, text_of
from ..world.world import DEFAULT_TIMEOUT, check_timeout
from .group import Group
from .options import JobOptions, OnFailure, Places

DEFAULT_SILENCE = 5.0
"""Seconds without a heartbeat after which a rank counts as gone, by default."""

_open: weakref.WeakSet[Collectives] = weakref.WeakSet()


class Collectives(Closing):
    """One rank's membership in a job. All methods are safe to call from any thread.

    Every rank has a number, which it keeps whatever happens to the others. After any failure the
    survivors agree: an operation is done on every one of them, with the same membership, or on
    none, and then its inputs are unchanged. As a context manager it leaves the job in good order,
    or only closes if an exception ends the block.

    >>> with tokenyard.Collectives.connect(store, secret="s", rank=0, size=1) as job:
    ...     job.active_ranks()
    [0]
    """

    def __init__(self, native: Any) -> None:
        """Wraps a native job; not for users: see `connect`, `join` and `alone`."""
        self._native: _tokenyard.Collectives = native
        _open.add(self)

    @classmethod
    def connect(
        cls,
        store: str,
        *,
        secret: str | None = None,
        rank: int,
        size: int,
        **options: Unpack[JobOptions],
    ) -> Self:
        """Starts a job together with its other ranks; blocks until every rank has connected.

        Args:
            store: where the ranks find one another. "file:/a/directory/all/ranks/see" is created
                if its parent exists; "tcp://host:port" is a store that StoreServer or
                `python -m tokenyard store` runs, or else one that a rank on that host starts.
            secret: known to all ranks; connections without it are rejected. None: what the file
                `secret_file` holds, or what the environment's TOKENYARD_SECRET_FILE or
                TOKENYARD_SECRET says.
            secret_file: a file with the secret, which only its owner may read.
            rank, size: this rank's number, and the number of ranks.
            job: the job's name, the same on all ranks; default "tokenyard".
            size_max: the size up to which `grow` may go; default `size`.
            timeout: default deadline of operations, in seconds; 30.
            silence: seconds without a heartbeat after which a rank counts as gone; 5.
            on_failure: what happens to an operation that was aborted because ranks were lost:
                "raise" OperationAborted, from later operations too, until `recover`, `shrink` or
                `replace`; "retry" it once new processes hold the lost ranks' places; or "exclude"
                the lost ranks and run it again among the survivors. Default "raise".
            places: the form of lists with one part per rank after ranks were lost: "kept",
                `size` parts, a lost rank's part zeros in results and not read in inputs; or
                "compact", one part per active rank, ascending by rank. The same on all ranks;
                default "kept".
            witness: whether the store has the casting vote when the ranks are cut into two equal
                halves; True.
            host_store: whether this rank may run the tcp store; True.
            address: address at which other ranks reach this one; detected if empty.
            host: ranks with the same name use shared memory; detected if empty.
            interconnect: a plug-in that replaces TCP between hosts, such as
                "libtokenyard_ucx.so", the same on all ranks; none if empty.

        Raises:
            PeerTimeout: a rank did not connect in time; names it.
            Unsupported: the interconnect is not available.
            InvalidArgument: there is no good secret, or arguments are wrong or contradict each
                other, such as two ranks with one number.
        """
        return cls._rendezvous("connect", store, secret, rank, size, **options)

    @classmethod
    def join(
        cls,
        store: str,
        *,
        secret: str | None = None,
        rank: int,
        size: int,
        **options: Unpack[JobOptions],
    ) -> Self:
        """Joins a running job in the place of a lost rank, or in one that `grow` opens.

        Blocks until the members admit this rank by `recover`, `replace`, `grow` or
        on_failure="retry". Takes the arguments of `connect`.

        Raises:
            PeerTimeout: the members did not admit this rank in time.
        """
        return cls._rendezvous("join", store, secret, rank, size, **options)

    @classmethod
    def alone(cls, *, rank: int, size: int, **options: Unpack[JobOptions]) -> Self:
        """Starts a job in which the places of all other ranks are empty, without waiting.

        Lets a process compute before it joins another job. Takes the options of `connect`, but
        no store and no secret.
        """
        return cls._rendezvous("alone", "file:none", token_hex(16), rank, size, **options)

    @classmethod
    def _rendezvous(
        cls,
        entrance: str,
        store: str,
        secret: str | None,
        rank: int,
        size: int,
        *,
        secret_file: str | PathLike[str] | None = None,
        job: str = "tokenyard",
        size_max: int | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        silence: float = DEFAULT_SILENCE,
        on_failure: OnFailure = "raise",
        places: Places = "kept",
        witness: bool = True,
        host_store: bool = True,
        address: str = "",
        host: str = "",
        interconnect: str = "",
        own_store: Any = None,
    ) -> Self:
        ranks = size_of("size", size, smallest=1)
        most = ranks if size_max is None else size_of("size_max", size_max, smallest=ranks)
        native = _tokenyard.Collectives.join_rendezvous(
            entrance=entrance,
            store=store if own_store is not None else text_of("store", store),
            own_store=own_store,
            host_store=host_store,
            job=text_of("job", job),
            secret=secret_of(secret, secret_file),
            rank=size_of("rank", rank, largest=most - 1),
            size=ranks,
            size_max=most,
            address=address,
            host=host,
            interconnect=interconnect,
            timeout_s=check_timeout(timeout),
            silence_s=check_timeout(silence, "silence"),
            on_failure=on_failure,
            places=places,
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

    def world(self) -> Group:
        """Returns the group of all ranks."""
        return Group(self._native.world())

    def group(self, ranks: Sequence[int], name: str, *, timeout: float | None = None) -> Group:
        """Creates a group of some ranks. All of them must call it; others need not.

        The result is a context manager that closes the group. A new process takes part in the
        groups that the others had open when they admitted it.

        Args:
            ranks: ranks of the job in any order; rank i of the group is ranks[i].
            name: the same on all ranks; free again once this rank has closed the group that had it.
            timeout: default deadline of the group's operations, in seconds; None for the job's.
        """
        members = [size_of("ranks", rank) for rank in ranks]
        text_of("name", name)
        limit = None if timeout is None else check_timeout(timeout)
        return Group(self._native.group(members, name, timeout_s=limit))

    def active_ranks(self) -> list[int]:
        """Returns the ranks that are members now, ascending; none once this rank is fenced."""
        return self._native.active_ranks()

    def waiting_ranks(self) -> list[int]:
        """Returns the ranks whose place a new process asks to take, ascending, without waiting.

        The member that a new process contacts knows at once, the others within some heartbeats.
        """
        return self._native.waiting_ranks()

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
        return self._native.shrink()

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
        return self._native.recover(wait_for_replacements=wait_for_replacements, timeout_s=limit)

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

    def counters(self) -> _tokenyard.CollectivesCounters:
        """Returns counts of operations, bytes and failures since the start."""
        return self._native.counters()

    def close(self) -> None:
        """Ends this rank's membership; a second call does nothing.

        Operations in progress fail with Cancelled.
        """
        self._native.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self._native.closed:
                self.leave()
        finally:
            super().__exit__(kind, error, trace)

    def __repr__(self) -> str:
        if self._native.closed:
            return "Collectives(closed)"
        return f"Collectives(rank={self.rank}, size={self.size}, epoch={self.epoch()})"


@atexit.register
def _close_all() -> None:
    """Closes all jobs before the interpreter goes, which their threads may call."""
    for collectives in list(_open):
        collectives.close()
