"""A Group: ranks that run collective operations together."""

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
"""One array per rank of the group, or one array [size, ...] with a row per rank."""


class Group(Closing):
    """Ranks that run collective operations together, numbered from 0 within the group.

    All ranks of a group must issue its calls in the same order; different groups are independent.
    Any thread may call. Every operation returns a `Work` at once, and its arrays must be left
    alone until `Work.wait` has returned. Arrays are C-contiguous NumPy arrays of any shape, of
    dtype bool, any integer, float16, bfloat16 (from ml_dtypes), float32, float64, complex64 or
    complex128.

    All operations accept these keywords:

        timeout    seconds until the operation fails with PeerTimeout; None for the group's.
        algorithm  how bytes move, the same on all ranks: "automatic"; for all_reduce "doubling",
                   "halving_doubling", "ring", "tree" or "direct"; for reduce and broadcast "tree"
                   or "ring"; for all_gather and reduce_scatter "ring" or "direct".

    `op` is "sum", "average", "product", "min", "max", "bit_and", "bit_or" or "bit_xor". float16 and
    bfloat16 are reduced in float32 and rounded once.

    Errors of an operation in progress are raised by `Work.wait`; a call itself raises
    InvalidArgument for arguments that cannot be right.

    A group that `Collectives.group` has made is closed by `close`, at the end of a `with` block,
    or when its last reference is dropped. Operations in progress continue. Each rank frees the
    group's resources once all active ranks have closed it.

    In a list with one part per rank, a lost rank's input is not read and its result is zeros;
    `Work.failed_ranks` names the lost ranks. With `places="compact"`, lists have one part per
    active rank instead.

    >>> with tokenyard.Collectives.connect(store, secret="s", rank=0, size=1) as job:
    ...     x = np.ones(3, np.float32)
    ...     job.world().all_reduce(x, "sum").wait()
    ...     x.tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, native: Any) -> None:
        """Wraps a native group; not for users: see `Collectives.world` and `Collectives.group`."""
        self._native: _tokenyard.Group = native

    @property
    def rank(self) -> int:
        """Index of this rank within the group."""
        return self._native.rank

    @property
    def size(self) -> int:
        """Number of ranks in the group, active or not."""
        return self._native.size

    @property
    def name(self) -> str:
        """Name of the group, the same on all its ranks."""
        return self._native.name

    @property
    def closed(self) -> bool:
        """Whether this rank has closed the group."""
        return self._native.closed

    def close(self) -> None:
        """Closes the group on this rank without waiting; a second call does nothing.

        Later calls raise InvalidArgument, on this rank and on ranks that have not closed the
        group. Its name is free for a new group at once. The group of all ranks stays open.
        """
        self._native.close()

    def active_ranks(self) -> list[int]:
        """Returns the ranks that take part in operations now, ascending."""
        return self._native.active_ranks()

    def all_reduce(
        self, array: np.ndarray | Sequence[np.ndarray], op: str = "sum", **call: Any
    ) -> Work:
        """Reduces arrays element by element over all ranks, in place, on every rank.

        Args:
            array: [...] any dtype, of one shape on all ranks; or a list of arrays, whose dtypes
                may differ, each reduced on its own within one operation.
            op: the reduction.
        """
        given = isinstance(array, np.ndarray) or not isinstance(array, Iterable)
        arrays: list[Any] = [array] if given else list(array)
        out = [written_buffer_of("array", one) for one in arrays]
        return self._submit(Kind.all_reduce, out=out, op=op, **call)

    def reduce(self, array: np.ndarray, op: str = "sum", *, root: int, **call: Any) -> Work:
        """Reduces arrays element by element over all ranks, in place, on the root only.

        Args:
            array: [...] any dtype; replaced on the root, unchanged elsewhere.
            op: the reduction.
            root: the rank that gets the result.
        """
        out = [written_buffer_of("array", array)]
        return self._submit(Kind.reduce, out=out, op=op, peer=self._rank("root", root), **call)

    def broadcast(self, array: np.ndarray, *, root: int, **call: Any) -> Work:
        """Copies the root's array to every rank, in place.

        Args:
            array: [...] any dtype, of the same length on every rank.
            root: the rank whose array is copied.
        """
        out = [written_buffer_of("array", array)]
        return self._submit(Kind.broadcast, out=out, peer=self._rank("root", root), **call)

    def all_gather(self, array: np.ndarray, out: Parts, **call: Any) -> Work:
        """Gathers every rank's array on every rank.

        Args:
            array: [...] any dtype; lengths may differ between ranks.
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
        """Gathers every rank's array on the root.

        Args:
            array: [...] any dtype; lengths may differ between ranks.
            out: on the root, as for `all_gather`; None elsewhere.
            root: the rank that gathers.
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
        """Distributes the root's parts, one to each rank.

        Args:
            out: [...] any dtype; receives this rank's part.
            parts: on the root, a list of `size` arrays, parts[r] as long as rank r's `out`, or one
                [size, ...]; None elsewhere.
            root: the rank that distributes.
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
        """Reduces parts over all ranks; rank r receives the reduction of all parts[r].

        Args:
            parts: a list of `size` arrays, parts[r] as long as rank r's `out`; or one [size, ...].
            out: [...] any dtype.
            op: the reduction.
        """
        return self._submit(
            Kind.reduce_scatter,
            [buffer_of("parts", part) for part in self._parts("parts", parts)],
            [written_buffer_of("out", out)],
            op=op,
            **call,
        )

    def all_to_all(self, parts: Parts, out: Parts, **call: Any) -> Work:
        """Exchanges parts between all ranks: rank r's out[s] receives rank s's parts[r].

        Args:
            parts: a list of `size` arrays of any lengths; or one [size, ...].
            out: a list of `size` arrays, out[s] as long as rank s's part for this rank; or one
                [size, ...].
        """
        return self._submit(
            Kind.all_to_all,
            [buffer_of("parts", part) for part in self._parts("parts", parts)],
            [written_buffer_of("out", part) for part in self._parts("out", out)],
            **call,
        )

    def barrier(self, **call: Any) -> Work:
        """Completes once every active rank has called it."""
        return self._submit(Kind.barrier, **call)

    def monitored_barrier(self, **call: Any) -> Work:
        """Completes like `barrier`; on a timeout, names every missing rank on all the others."""
        return self._submit(Kind.monitored_barrier, **call)

    def send(self, array: np.ndarray, to: int, tag: int = 0, **call: Any) -> Work:
        """Sends an array to one rank. Messages are outside the group's order of operations.

        Up to the `eager_limit` of `tokenyard.connect` the operation is done once the array is
        copied, beyond that once the receiver has it.

        Args:
            array: [...] any dtype.
            to: the rank that receives it.
            tag: an integer from 0 to 2**64 - 1; the receiver must give the same.
        """
        given = [buffer_of("array", array)]
        return self._submit(Kind.send, given, peer=self._rank("to", to), tag=tag, **call)

    def receive(
        self, array: np.ndarray, source: int | None = None, tag: int = 0, **call: Any
    ) -> Work:
        """Receives an array from one rank.

        Args:
            array: [...] any dtype, of the length that is sent.
            source: the rank that sends; None for the first message with this tag from any rank,
                which `Work.source` then names.
            tag: the sender's tag.
        """
        peer = None if source is None else self._rank("source", source)
        out = [written_buffer_of("array", array)]
        return self._submit(Kind.receive, out=out, peer=peer, tag=tag, **call)

    def choice(self, operation: str, bytes_: int) -> str:
        """Returns the algorithm that `operation` would use for `bytes_` bytes here, and why."""
        return self._native.choice(operation, size_of("bytes_", bytes_, largest=2**63 - 1))

    def _parts(self, argument: str, parts: Parts) -> list[np.ndarray]:
        count = self._native.parts
        if count < self.size and isinstance(parts, Sequence | np.ndarray):
            # A rank that does not know of a loss yet passes longer lists; the operation itself
            # then raises, on all ranks alike.
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
