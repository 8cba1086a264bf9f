"""A job's Collectives: operations among ranks that may die, hang, leave and join."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import _tokenyard

from ..closing import Closing
from ..sizes import size_of, text_of
from ..world.world import DEFAULT_TIMEOUT, check_timeout
from .group import Group
from .options import JobOptions, OnFailure, Places

DEFAULT_SILENCE = 5.0
"""Seconds after which a rank that is not heard of is taken for gone, unless told."""

_open: weakref.WeakSet[Collectives] = weakref.WeakSet()


class Collectives(Closing):
    """One rank's part in a job. Any thread may call anything.

    Every rank has a number, which stays its own whatever happens to the others. After any failure
    all survivors agree: an operation is done on every one of them, with the same membership, or it
    has not happened on any, and inputs are as they were. A context manager: it leaves the job in
    good order, or, if an exception ends it, just closes.

    >>> with tokenyard.Collectives.connect(store, secret="s", rank=0, size=1) as job:
    ...     job.active_ranks()
    [0]
    """

    def __init__(self, native: Any) -> None:
        """Not for callers: see `connect` and `join`."""
        self._native: _tokenyard.Collectives = native
        _open.add(self)

    @classmethod
    def connect(
        cls, store: str, *, secret: str, rank: int, size: int, **options: Unpack[JobOptions]
    ) -> Self:
        """Begins a job with all its other ranks. Blocks until every rank has come.

        Args:
            store: where the ranks find one another: "file:/a/directory/all/ranks/see", made if
                the folder that it lies in is there, or "tcp://host:port", a store that StoreServer
                or `python -m tokenyard store` runs, or a rank of that host itself if nobody does.
            secret: what all ranks know; whoever does not is turned away.
            rank, size: this rank's number and how many there are.
            job: a name that all ranks share, "tokenyard" if not given.
            size_max: how far `grow` may go; `size` if not given.
            timeout: seconds that an operation may take, unless told; 30.
            silence: seconds after which a rank that is not heard of is gone; 5.
            on_failure: what an operation does that was aborted because ranks are gone: "raise"
                OperationAborted, and so do all later ones until `recover`, `shrink` or `replace`;
                "retry" once somebody has taken the lost ranks' places; or "exclude": run again
                among the survivors.
            places: what lists with a part for each rank look like once ranks are lost: "kept",
                `size` parts, those of lost ranks zeros in results and not read in inputs; or
                "compact", a part for each active rank, ascending by rank. Alike on all ranks.
            witness: whether the store decides which half goes on when the ranks are cut in two
                equal halves; True.
            host_store: whether this rank may run the tcp store; True.
            address: where others reach this rank; found out if empty.
            host: ranks with equal names share memory; found out if empty.
            interconnect: a plug-in that carries what would go over TCP, "libtokenyard_ucx.so" for
                one, alike on all ranks; none if empty.

        Raises:
            PeerTimeout: names a rank that did not come.
            Unsupported: there is no such interconnect.
            InvalidArgument: for example two ranks with one number.
        """
        return cls._rendezvous("connect", store, secret, rank, size, **options)

    @classmethod
    def join(
        cls, store: str, *, secret: str, rank: int, size: int, **options: Unpack[JobOptions]
    ) -> Self:
        """Takes the place of a lost rank, or one that `grow` opens, in a job that runs.

        Blocks until the members admit this rank: by `recover`, `replace`, `grow`, or
        on_failure="retry". Arguments are those of `connect`.

        Raises:
            PeerTimeout: nobody admitted this rank.
        """
        return cls._rendezvous("join", store, secret, rank, size, **options)

    @classmethod
    def alone(cls, *, rank: int, size: int, **options: Unpack[JobOptions]) -> Self:
        """Begins a job of which all other ranks' places are empty, and meets nobody.

        For a process that wants to compute before it joins another job. Takes the options of
        `connect`, but no store and no secret.
        """
        return cls._rendezvous("alone", "file:none", "of nobody else", rank, size, **options)

    @classmethod
    def _rendezvous(
        cls,
        entrance: str,
        store: str,
        secret: str,
        rank: int,
        size: int,
        *,
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
            secret=text_of("secret", secret),
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
        """This rank's number."""
        return self._native.rank

    @property
    def size(self) -> int:
        """How many numbers there are, taken or not."""
        return self._native.size

    def world(self) -> Group:
        """The group of all ranks."""
        return Group(self._native.world())

    def group(self, ranks: Sequence[int], name: str, *, timeout: float | None = None) -> Group:
        """Makes a group of some ranks. Collective among them; others need not call.

        A context manager that closes it. A newcomer enters the groups that the others had open
        when they let it in.

        Args:
            ranks: of the world, in any order; ranks of the group are counted in that order.
            name: the same on all; used again once this rank has closed the group that had it.
            timeout: seconds that an operation may take, unless told; the job's if None.
        """
        members = [size_of("ranks", rank) for rank in ranks]
        text_of("name", name)
        limit = None if timeout is None else check_timeout(timeout)
        return Group(self._native.group(members, name, timeout_s=limit))

    def active_ranks(self) -> list[int]:
        """The ranks that belong to the job now, ascending. None once this rank is fenced."""
        return self._native.active_ranks()

    def waiting_ranks(self) -> list[int]:
        """Ranks for which a new process waits to be let in, ascending. Waits for nobody.

        Whoever a newcomer has found knows at once, the others within some heartbeats.
        """
        return self._native.waiting_ranks()

    def epoch(self) -> int:
        """How often the membership was agreed on; the first is 1."""
        return self._native.epoch()

    def on_change(self, call: Callable[[], None]) -> _tokenyard.Listening:
        """Calls `call()` after every change of the membership, until the result is dropped.

        It is called on a thread of the library, and must not wait for operations.
        """
        return self._native.on_change(call)

    def shrink(self) -> list[int]:
        """Goes on among the survivors, together. Returns the ranks that have, alike on all.

        Waits until every survivor has called it, and lets all groups work again. What failed
        before, on whichever rank, is behind them all: no later operation fails for it. One that
        was called before, and whose root is lost, may still fail, with an `OperationAborted` of an
        epoch before `epoch()`: that asks for no other shrink.

        Raises:
            PeerTimeout: a rank has not called it.
            QuorumLost: too few of them answer.
        """
        return self._native.shrink()

    def recover(
        self, *, wait_for_replacements: bool = False, timeout: float | None = None
    ) -> list[int]:
        """Goes on with the ranks that are there now. Returns them, ascending.

        Lets all groups work again, and ends whatever the others have called and whenever: at once
        where they have recovered already. Only after a PeerTimeout, of which not every rank may
        have been told, it waits until all ranks have called it, as `shrink` does.

        Args:
            wait_for_replacements: wait until new processes hold all places that are empty.
            timeout: seconds; the job's if None.

        Raises:
            PeerTimeout: names a rank that did not come, or did not call it.
            QuorumLost: too few ranks answer.
        """
        limit = None if timeout is None else check_timeout(timeout)
        return self._native.recover(wait_for_replacements=wait_for_replacements, timeout_s=limit)

    def replace(self, rank: int, *, timeout: float | None = None) -> None:
        """Waits until a new process holds a lost rank's place, by `join`.

        Done at once if one has come since the loss, whoever called for it. Every survivor calls it
        for each lost rank, in any order: a group works again once all its lost ranks are replaced.
        A rank that nobody has lost hands its place over to the next process that comes for it.

        Raises:
            PeerTimeout: nobody came.
        """
        limit = None if timeout is None else check_timeout(timeout)
        self._native.replace(size_of("rank", rank), timeout_s=limit)

    def grow(self, ranks: int, *, timeout: float | None = None) -> None:
        """Waits until `ranks` more ranks have come, by `join`, than earlier calls asked for.

        Done at once if they have. It continues no group that has stopped. Every member calls it;
        a newcomer counts from the ranks that there were before it, and itself.

        Raises:
            PeerTimeout: too few came.
        """
        limit = None if timeout is None else check_timeout(timeout)
        self._native.grow(size_of("ranks", ranks, smallest=1), timeout_s=limit)

    def evict(self, rank: int, *, timeout: float | None = None) -> None:
        """Puts a living rank out: it is Fenced, and lost to all the others.

        One rank's call is enough. The others' operations raise OperationAborted as for any lost
        rank; all of them, this one too, go on by `recover`, `shrink` or `replace`.

        Raises:
            InvalidArgument: this rank itself, or too few would remain.
            PeerTimeout: the ranks did not agree in time.
        """
        limit = None if timeout is None else check_timeout(timeout)
        self._native.evict(size_of("rank", rank), timeout_s=limit)

    def leave(self) -> None:
        """Leaves in good order, once all messages it has sent have been received.

        What else is under way fails with Cancelled. The others go on without an error as soon as
        they `shrink`, or at once under on_failure="exclude".

        Raises:
            PeerTimeout: a rank has not taken a message in time. This one has left all the same.
        """
        self._native.leave()

    def cancel(self) -> None:
        """Ends everything that waits, on this rank, with Cancelled."""
        self._native.cancel()

    def counters(self) -> _tokenyard.CollectivesCounters:
        """What was counted since the start."""
        return self._native.counters()

    def close(self) -> None:
        """Ends this rank's part: what is under way fails with Cancelled. May be called again."""
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
    """The library's threads must not look for an interpreter that is gone."""
    for collectives in list(_open):
        collectives.close()
