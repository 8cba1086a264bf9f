"""The collectives of a job whose ranks may die, hang, leave and join."""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, Self, Unpack

import _tokenyard

from ..membership import EAGER_LIMIT_MAX, Members
from ..secret import secret_of
from ..sizes import size_of, text_of
from ..world.world import check_timeout
from .group import Group
from .options import JobOptions

if TYPE_CHECKING:
    from ..job import Job


class Collectives(Members):
    """The groups and operations of a job, and its calls. All methods are thread-safe.

    Every rank has a number, which it keeps whatever happens to the others. After any failure the
    survivors agree: an operation is done on every one of them, with the same membership, or on
    none, and then its inputs are unchanged. As a context manager it leaves the job in good order,
    or only closes if an exception ends the block.

    >>> with tokenyard.Collectives.connect(store, secret="s", rank=0, size=1) as job:
    ...     job.active_ranks()
    [0]
    """

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
            secret: as `tokenyard.connect`, but one is needed: there is none that the processes of
                this user share.
            store, rank, size, options: as `tokenyard.connect`.

        Raises:
            PeerTimeout: a rank did not connect in time; names it.
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
        **options: Unpack[JobOptions],
    ) -> Self:
        known = secret_of(secret, options.pop("secret_file", None))
        return cls._enter(entrance, store, known, rank, size, **options)

    @property
    def job(self) -> Job:
        """The job that these collectives run in, on which worlds can be made, too."""
        from ..job import Job

        return Job(self._native.share(), founds=False)

    def world(self) -> Group:
        """Returns the group of all ranks."""
        return Group(self._native.world_group())

    def group(
        self,
        ranks: Sequence[int],
        name: str,
        *,
        timeout: float | None = None,
        eager_limit: int | None = None,
    ) -> Group:
        """Creates a group of some ranks. All of them must call it; others need not.

        The result is a context manager that closes the group. A new process takes part in the
        groups that the others had open when they admitted it.

        Args:
            ranks: ranks of the job in any order; rank i of the group is ranks[i].
            name: the same on all ranks; free again once this rank has closed the group that had it.
            timeout: default deadline of the group's operations, in seconds; None for the job's.
            eager_limit: of this rank's sends in the group, in bytes, as `tokenyard.connect`; None
                for the job's.
        """
        members = [size_of("ranks", rank) for rank in ranks]
        text_of("name", name)
        limit = None if timeout is None else check_timeout(timeout)
        eager = eager_limit
        if eager is not None:
            eager = size_of("eager_limit", eager, largest=EAGER_LIMIT_MAX)
        return Group(self._native.group(members, name, timeout_s=limit, eager_limit=eager))

    def waiting_ranks(self) -> list[int]:
        """Returns the ranks whose place a new process asks to take, ascending, without waiting.

        The member that a new process contacts knows at once, the others within some heartbeats.
        One that any member has let in waits no more: look at `active_ranks()`, too.
        """
        return self._native.waiting()

    def counters(self) -> _tokenyard.CollectivesCounters:
        """Returns counts of operations, bytes and failures since the start."""
        return self._native.counters()
