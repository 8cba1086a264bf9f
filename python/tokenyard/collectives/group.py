"""A Group: ranks that operate together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np

import _tokenyard
from _tokenyard import Algorithm, Kind, ReduceOp

from ..closing import Closing
from ..errors import InvalidArgument, invalid
from ..sizes import size_of
from .buffers import Buffer, buffer_of, parts_of, written_buffer_of
from .work import Work

Parts = Sequence[np.ndarray] | np.ndarray
"""An array for each rank of the group; or one array [size, ...] whose rows they are."""


class Group(Closing):
    """Ranks that operate together, counted within the group.

    Calls of one group happen in the same order on all its ranks; any thread may call, and groups do
    not wait for one another. Every operation returns a Work at once; its arrays must be left alone
    until `wait` has returned. Arrays are NumPy's, C-contiguous, of any shape, and of bool, any
    integer, float16, bfloat16 (from ml_dtypes), float32, float64, complex64 or complex128.

    All operations take these:

        timeout    seconds until the operation fails with PeerTimeout; the group's if None.
        algorithm  how bytes move, the same on all ranks: "automatic"; for all_reduce "doubling",
                   "halving_doubling", "ring", "tree" or "direct"; for reduce and broadcast "tree"
                   or "ring"; for all_gather and reduce_scatter "ring" or "direct".

    `op` is "sum", "average", "product", "min", "max", "bit_and", "bit_or" or "bit_xor". float16 and
    bfloat16 are reduced in float32 and rounded once.

    A group that `Collectives.group` has made is closed by `close`, at the end of a `with` block,
    and when nobody refers to it any more. What is under way goes on. Once all its active ranks
    have closed it, it gives back on all of them what it used.

    A lost rank's part of a list is not read, and holds zeros in results; `Work.failed_ranks` names
    it. With `places="compact"` lists have a part for each active rank instead.

    >>> with tokenyard.Collectives.connect(store, secret="s", rank=0, size=1) as job:
    ...     x = np.ones(3, np.float32)
    ...     job.world().all_reduce(x, "sum").wait()
    ...     x.tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, native: Any) -> None:
        """Not for callers: see `Collectives.world` and `Collectives.group`."""
        self._native: _tokenyard.Group = native

    @property
    def rank(self) -> int:
        """This rank's number within the group."""
        return self._native.rank

    @property
    def size(self) -> int:
        """How many ranks belong to the group, active or not."""
        return self._native.size

    @property
    def name(self) -> str:
        """The group's name, the same on all its ranks."""
        return self._native.name

    @property
    def closed(self) -> bool:
        """Whether this rank has closed it."""
        return self._native.closed

    def close(self) -> None:
        """Ends the group on this rank, which waits for nobody. May be called again.

        Later calls raise InvalidArgument, as do calls of ranks that have not closed it. The name
        may be used again at once. The world stays open.
        """
        self._native.close()

    def active_ranks(self) -> list[int]:
        """The ranks that take part in operations now, ascending."""
        return self._native.active_ranks()

    def all_reduce(
        self, array: np.ndarray | Sequence[np.ndarray], op: str = "sum", **call: Any
    ) -> Work:
        """Every rank's arrays become the reduction of all ranks'.

        Args:
            array: [...] any type, reduced in place; or a list of arrays, whose types may differ,
                reduced one by one in one operation.
        """
        given = isinstance(array, np.ndarray) or not isinstance(array, Iterable)
        arrays: list[Any] = [array] if given else list(array)
        out = [written_buffer_of("array", one) for one in arrays]
        return self._submit(Kind.all_reduce, out=out, op=op, **call)

    def reduce(self, array: np.ndarray, op: str = "sum", *, root: int, **call: Any) -> Work:
        """The root's array becomes the reduction of all ranks'; the others' are left as they are.

        Args:
            array: [...] any type, in place.
        """
        out = [written_buffer_of("array", array)]
        return self._submit(Kind.reduce, out=out, op=op, peer=self._rank("root", root), **call)

    def broadcast(self, array: np.ndarray, *, root: int, **call: Any) -> Work:
        """Every rank's array becomes the root's.

        Args:
            array: [...] any type, as long on every rank.
        """
        out = [written_buffer_of("array", array)]
        return self._submit(Kind.broadcast, out=out, peer=self._rank("root", root), **call)

    def all_gather(self, array: np.ndarray, out: Parts, **call: Any) -> Work:
        """Every rank's array arrives on every rank.

        Args:
            array: [...] any type; lengths may differ from rank to rank.
            out: a list of `size` arrays, out[r] as long as rank r's `array`; or one [size, ...].
        """
        return self._submit(
            Kind.all_gather,
            [buffer_of("array", array)],
            [written_buffer_of("out", part) for part in self._parts("out", out)],
            **call,
        )

    def gather(
        self, array: np.ndarray, out: Parts | None = None, *, root: int, **call: Any
    ) -> Work:
        """Every rank's array arrives on the root.

        Args:
            array: [...] any type; lengths may differ from rank to rank.
            out: on the root, as for `all_gather`; None elsewhere.
        """
        parts = [] if out is None else self._parts("out", out)
        return self._submit(
            Kind.gather,
            [buffer_of("array", array)],
            [written_buffer_of("out", part) for part in parts],
            peer=self._rank("root", root),
            **call,
        )

    def scatter(
        self, out: np.ndarray, parts: Parts | None = None, *, root: int, **call: Any
    ) -> Work:
        """Each rank's `out` becomes its part of the root's.

        Args:
            out: [...] any type.
            parts: on the root, a list of `size` arrays, parts[r] as long as rank r's `out`, or one
                [size, ...]; None elsewhere.
        """
        given = [] if parts is None else self._parts("parts", parts)
        return self._submit(
            Kind.scatter,
            [buffer_of("parts", part) for part in given],
            [written_buffer_of("out", out)],
            peer=self._rank("root", root),
            **call,
        )

    def reduce_scatter(self, parts: Parts, out: np.ndarray, op: str = "sum", **call: Any) -> Work:
        """Each rank's `out` becomes the reduction of what all ranks have for it.

        Args:
            parts: a list of `size` arrays, parts[r] as long as rank r's `out`; or one [size, ...].
            out: [...] any type.
        """
        return self._submit(
            Kind.reduce_scatter,
            [buffer_of("parts", part) for part in self._parts("parts", parts)],
            [written_buffer_of("out", out)],
            op=op,
            **call,
        )

    def all_to_all(self, parts: Parts, out: Parts, **call: Any) -> Work:
        """Rank r's out[s] becomes rank s's parts[r].

        Args:
            parts: a list of `size` arrays of any lengths; or one [size, ...].
            out: a list of `size` arrays, out[s] as long as rank s's part for this rank; or one.
        """
        return self._submit(
            Kind.all_to_all,
            [buffer_of("parts", part) for part in self._parts("parts", parts)],
            [written_buffer_of("out", part) for part in self._parts("out", out)],
            **call,
        )

    def barrier(self, **call: Any) -> Work:
        """Done once every active rank has called it."""
        return self._submit(Kind.barrier, **call)

    def monitored_barrier(self, **call: Any) -> Work:
        """A barrier that names, on every rank that came in time, each rank that did not."""
        return self._submit(Kind.monitored_barrier, **call)

    def send(self, array: np.ndarray, to: int, tag: int = 0, **call: Any) -> Work:
        """Sends to one rank, which receives with the same tag. Not part of the group's order.

        Args:
            array: [...] any type.
        """
        given = [buffer_of("array", array)]
        return self._submit(Kind.send, given, peer=self._rank("to", to), tag=tag, **call)

    def receive(
        self, array: np.ndarray, source: int | None = None, tag: int = 0, **call: Any
    ) -> Work:
        """Receives what `source` sends with the same tag; None: whoever sends first.

        Args:
            array: [...] any type, as long as what is sent.
        """
        peer = None if source is None else self._rank("source", source)
        out = [written_buffer_of("array", array)]
        return self._submit(Kind.receive, out=out, peer=peer, tag=tag, **call)

    def choice(self, operation: str, bytes_: int) -> str:
        """The algorithm that an operation of so many bytes would use here, and why."""
        return self._native.choice(operation, size_of("bytes_", bytes_, largest=2**63 - 1))

    def _parts(self, argument: str, parts: Parts) -> list[np.ndarray]:
        count = self._native.parts
        if count < self.size and isinstance(parts, Sequence | np.ndarray):
            # Who has not heard of a loss has other lists: all ranks learn of that together.
            return parts_of(argument, parts, min(len(parts), self.size))
        try:
            return parts_of(argument, parts, count)
        except InvalidArgument as error:
            lost = sorted(set(range(self.size)) - set(self.active_ranks()))
            if not lost:
                raise
            kept = f"{error.expected}; places of lost ranks ({', '.join(map(str, lost))}) are kept"
            raise invalid(argument, kept, error.seen) from None

    def _rank(self, argument: str, rank: int) -> int:
        return size_of(argument, rank, largest=self.size - 1)

    def _submit(
        self,
        kind: Kind,
        given: Sequence[Buffer] = (),
        out: Sequence[Buffer] = (),
        *,
        op: str = "sum",
        peer: int | None = None,
        tag: int = 0,
        timeout: float | None = None,
        algorithm: str = "automatic",
    ) -> Work:
        if timeout is not None and not (isinstance(timeout, Real) and 0 <= timeout < 1e9):
            raise invalid("timeout", "seconds, from 0 to 1e9", repr(timeout))
        native = self._native.submit(
            kind,
            given=given,
            out=out,
            op=_member("op", ReduceOp, op),
            peer=peer,
            tag=size_of("tag", tag, largest=2**64 - 1),
            timeout_s=timeout,
            algorithm=_member("algorithm", Algorithm, algorithm),
        )
        return Work(native)

    def __repr__(self) -> str:
        return f"Group({self.name!r}, rank={self.rank}, size={self.size})"


def _member(argument: str, kind: Any, name: str) -> Any:
    try:
        return kind[name]
    except (KeyError, TypeError):
        raise invalid(argument, " or ".join(map(repr, kind.__members__)), repr(name)) from None
