"""Collectives on the tensors of a World's device: GPUs, or the host's memory."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import _tokenyard
from _tokenyard import DataType, ReduceOp

from .arrays import arrays_of
from .closing import Closing
from .collectives.options import OnFailure
from .errors import invalid
from .expert_parallel.call_device import CallDevice
from .sizes import size_of
from .world.world import World, check_timeout, native_of

PROTOCOLS = ("automatic", "slots", "packets", "rings", "direct")
SLOT_BYTES = 256 << 10
CHUNK_BYTES = 16 << 10


class DeviceCollectives(Closing):
    """Collectives among the ranks of a World, on tensors of its device.

    Collective: all ranks make it, and its calls, together and in the same order. Calls are enqueued
    on torch's current stream and do not wait for it; on the host they run at once. A CUDA graph may
    capture them. `Collectives` has the same operations for CPU arrays of processes on any hosts,
    with a commit after each; here there is none.

    Arrays are C-contiguous: torch tensors on the world's GPU, or on the host NumPy arrays or CPU
    tensors. They have dtype bool, any integer, float16, bfloat16, float32, float64 or
    float8_e4m3fn or float8_e5m2, and where nothing is reduced any other of up to 16 bytes. A
    result may lie exactly where the input does (where this rank's own part does, if there are
    parts).

    All operations accept these keywords:

        timeout   seconds until the call fails; None for the world's.
        protocol  how bytes move, the same on all ranks: "automatic", "slots",
                  "packets", "rings" or "direct".
        sms       multiprocessors (blocks, on the host) that the call may use; 0 for those of the
                  options.
        stream    the stream, as torch's object or an integer; None for torch's current one.

    `op` is "sum", "average", "product", "min", "max", "bit_and", "bit_or" or "bit_xor"; with "sum"
    of floats, `factor` multiplies every rank's elements. 16- and 8-bit floats are reduced in
    float32, in the order of ranks, and rounded once: results are the same bits from run to run.

    Errors that a rank finds alone are raised at once. A call that fails on the device, since a rank
    is gone, silent or makes another call, raises from `check`, `wait` or the next call, on every
    rank. Once a recovery call of the world's job has returned, the next call of all ranks goes on
    (`go_on`): they agree on the last call that all of them have finished, and each later one counts
    as failed, also where it has finished. A world without a job does not go on: rebuild it, and
    make new collectives on it.

    Args:
        world: the ranks. Between hosts there is no choice of a protocol, and reductions go by host,
            then across hosts in their order.
        sms: multiprocessors of a call at most; may differ among ranks. 0: chosen.
        slot_bytes: largest message that takes the protocol for few bytes.
        packet_bytes: largest message that takes the one for some megabytes, a multiple of 16; 0:
            chosen.
        chunk_bytes: largest chunk of larger messages, a multiple of 16.
        ring_bytes: bytes of each ring of chunks; 0: chosen.
        arena_tensors: promises that tensors of larger calls that reduce nothing lie in the ranks'
            arenas (`World.mem_pool`), between which bytes then move directly.
        keep_inputs: whether calls in place copy their input first, and back if they fail. Not with
            `arena_tensors`.
        on_failure: what a call does when ranks are lost: "raise" raises an error. "retry" waits
            until new processes hold the lost ranks' slots, "exclude" goes on among the survivors,
            and the call is made again, as the job's `on_failure` says, which must be the same. Then
            every call waits on the host for its end, and needs `keep_inputs`.

    Raises:
        InvalidArgument: an option is wrong, or differs from another rank's.
        Unsupported: a rank of one host is not within reach of loads and stores, or a network
            between hosts has no queue left.

    >>> def gradients(world):
    ...     with tokenyard.DeviceCollectives(world) as collectives:
    ...         x = np.full(3, world.rank + 1, np.float32)
    ...         collectives.all_reduce(x)
    ...         return x.tolist()
    >>> tokenyard.launch(gradients, ranks=2)
    [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]
    """

    def __init__(
        self,
        world: World,
        *,
        sms: int = 0,
        slot_bytes: int = SLOT_BYTES,
        packet_bytes: int = 0,
        chunk_bytes: int = CHUNK_BYTES,
        ring_bytes: int = 0,
        arena_tensors: bool = False,
        keep_inputs: bool = False,
        on_failure: OnFailure = "raise",
        _before: DeviceCollectives | None = None,
    ) -> None:
        if on_failure not in ("raise", "retry", "exclude"):
            raise invalid("on_failure", "'raise', 'retry' or 'exclude'", repr(on_failure))
        self._native: _tokenyard.DeviceCollectives = _tokenyard.DeviceCollectives.make(
            native_of(world),
            sms=size_of("sms", sms),
            slot_bytes=size_of("slot_bytes", slot_bytes),
            packet_bytes=size_of("packet_bytes", packet_bytes),
            chunk_bytes=size_of("chunk_bytes", chunk_bytes),
            ring_bytes=size_of("ring_bytes", ring_bytes),
            arena_tensors=bool(arena_tensors),
            keep_inputs=bool(keep_inputs),
            on_failure=on_failure,
            before=None if _before is None else _before._native,
        )
        self.world = world
        self._device = CallDevice(world.device_index)
        self._closed = False

    @staticmethod
    def memory(
        *,
        ranks: int,
        slot_bytes: int = SLOT_BYTES,
        packet_bytes: int = 0,
        chunk_bytes: int = CHUNK_BYTES,
        ring_bytes: int = 0,
    ) -> int:
        """Returns the bytes of the arena that collectives take on each rank of one host.

        Allocates nothing.
        """
        return _tokenyard.DeviceCollectives.memory(
            ranks=size_of("ranks", ranks, smallest=1),
            slot_bytes=size_of("slot_bytes", slot_bytes),
            packet_bytes=size_of("packet_bytes", packet_bytes),
            chunk_bytes=size_of("chunk_bytes", chunk_bytes, smallest=1),
            ring_bytes=size_of("ring_bytes", ring_bytes),
        )

    def barrier(self, **call: Any) -> None:
        """Ends, in stream order, after all ranks have begun it: what they did before is visible."""
        self._native.barrier(**self._call(**call))

    def all_reduce(
        self, array: Any, op: str = "sum", *, out: Any = None, factor: float = 1.0, **call: Any
    ) -> None:
        """Reduces arrays element by element over all ranks, on every rank.

        Args:
            array: [...] of one size on all ranks.
            op: the reduction.
            out: an array for the result; `array` if None.
            factor: multiplies the elements of every rank; the same on all.
        """
        given, kind = self._array("array", array)
        result, _ = self._written("array", array, out)
        self._native.all_reduce(
            *(given, result), kind, _op(op), _factor(factor), **self._call(**call)
        )

    def reduce(
        self,
        array: Any,
        op: str = "sum",
        *,
        root: int,
        out: Any = None,
        factor: float = 1.0,
        **call: Any,
    ) -> None:
        """Reduces arrays element by element over all ranks, on the root only.

        Args:
            array: [...] of one size on all ranks; unchanged except on a root without `out`.
            op: the reduction.
            root: the rank that gets the result.
            out: on the root, an array for the result; `array` if None.
            factor: multiplies the elements of every rank; the same on all.
        """
        number = self._rank("root", root)
        is_root = number == self.world.rank
        given, kind = self._array("array", array)
        result = self._written("array", array, out)[0] if is_root else None
        self._native.reduce(
            *(given, result), kind, _op(op), _factor(factor), number, **self._call(**call)
        )

    def broadcast(self, array: Any, *, root: int, **call: Any) -> None:
        """Copies the root's array to every rank, in place.

        Args:
            array: [...] of one size on all ranks.
            root: the rank whose array is copied.
        """
        number = self._rank("root", root)
        given, kind = self._array("array", array, written=number != self.world.rank, moved=True)
        self._native.broadcast(given, kind, number, **self._call(**call))

    def all_gather(
        self, array: Any, out: Any, *, counts: Sequence[int] | None = None, **call: Any
    ) -> None:
        """Gathers every rank's array on every rank.

        Args:
            array: [...] of one size on all ranks, unless `counts` are given.
            out: as many elements as all arrays together, in the order of ranks.
            counts: elements of each rank's array, by rank and the same on all ranks; None if all
                have as many.
        """
        given, kind = self._array("array", array, moved=True)
        result, _ = self._array("out", out, written=True, moved=True)
        self._same_kind(array, out)
        self._native.all_gather(
            *(given, result), kind, self._counts("counts", counts), **self._call(**call)
        )

    def gather(self, array: Any, out: Any = None, *, root: int, **call: Any) -> None:
        """Gathers every rank's array on the root.

        Args:
            array: [...] of one size on all ranks.
            out: on the root, as many elements as all arrays together; not used elsewhere.
            root: the rank that gathers.
        """
        number = self._rank("root", root)
        given, kind = self._array("array", array, moved=True)
        result = None
        if number == self.world.rank:
            result, _ = self._array("out", out, written=True, moved=True)
            self._same_kind(array, out)
        self._native.gather(given, result, kind, number, **self._call(**call))

    def scatter(self, out: Any, parts: Any = None, *, root: int, **call: Any) -> None:
        """Distributes the root's parts, one to each rank.

        Args:
            out: [...] of one size on all ranks; receives this rank's part.
            parts: on the root, as many elements as all results together; not used elsewhere.
            root: the rank that distributes.
        """
        number = self._rank("root", root)
        result, kind = self._array("out", out, written=True, moved=True)
        given = None
        if number == self.world.rank:
            given, _ = self._array("parts", parts, moved=True)
            self._same_kind(parts, out)
        self._native.scatter(given, result, kind, number, **self._call(**call))

    def reduce_scatter(
        self,
        parts: Any,
        out: Any,
        op: str = "sum",
        *,
        counts: Sequence[int] | None = None,
        factor: float = 1.0,
        **call: Any,
    ) -> None:
        """Reduces parts over all ranks; rank r receives the reduction of all ranks' part r.

        Args:
            parts: as many elements as all results together, in the order of ranks.
            out: [...] of one size on all ranks, unless `counts` are given.
            op: the reduction.
            counts: elements of each rank's result, by rank and the same on all ranks; None if all
                have as many.
            factor: multiplies the elements of every rank; the same on all.
        """
        given, kind = self._array("parts", parts)
        result, _ = self._array("out", out, written=True)
        self._same_kind(parts, out)
        self._native.reduce_scatter(
            *(given, result, kind, _op(op), _factor(factor)),
            self._counts("counts", counts),
            **self._call(**call),
        )

    def all_to_all(
        self,
        parts: Any,
        out: Any,
        *,
        sent: Sequence[int] | None = None,
        received: Sequence[int] | None = None,
        splits: Any = None,
        received_splits: Any = None,
        **call: Any,
    ) -> None:
        """Exchanges parts between all ranks.

        Args:
            parts: a part for each rank, in the order of ranks.
            out: part r comes from rank r.
            sent: elements of each part of `parts`; None if all have as many, on all ranks.
            received: elements of each part of `out`; given with `sent`. Then `out` has memory of
                its own, and every rank gives both.
            splits: instead of `sent`, an int64 array of the device, [ranks], which is read in
                stream order: elements of each part of `parts`, one behind the other. `parts` and
                `out` may be larger; ranks whose splits exceed `parts`, and those that get more than
                `out` holds, are named on all ranks.
            received_splits: given with `splits`, an int64 array of the device, [ranks], which gets
                the elements of each part of `out`.
        """
        given, kind = self._array("parts", parts, moved=True)
        result, _ = self._array("out", out, written=True, moved=True)
        self._same_kind(parts, out)
        if (splits is None) != (received_splits is None):
            raise invalid("received_splits", "an array where `splits` is one, or None", "another")
        if splits is not None:
            if sent is not None or received is not None:
                raise invalid("sent", "None with `splits`", "numbers")
            self._native.all_to_all_on_device(
                *(given, result, kind),
                self._split_array("splits", splits),
                self._split_array("received_splits", received_splits),
                **self._call(**call),
            )
            return
        if (sent is None) != (received is None):
            raise invalid("received", "numbers of elements where `sent` has them, or None", "one")
        self._native.all_to_all(
            *(given, result, kind),
            self._counts("sent", sent),
            self._counts("received", received),
            **self._call(**call),
        )

    def send(self, array: Any, to: int, tag: int = 0, **call: Any) -> None:
        """Sends an array to one rank, which receives it.

        Messages between two ranks are received in the order in which they are sent. They are
        outside the order of the other operations. Small ones do not wait for the receiver.

        Args:
            array: [...].
            to: another rank.
            tag: an integer below 2**24 - 1; the receiver gives the same.
        """
        self.exchange(sends=[(array, to, tag)], **call)

    def receive(self, array: Any, source: int, tag: int = 0, **call: Any) -> None:
        """Receives an array from one rank.

        Args:
            array: [...] of the dtype and size that is sent.
            source: another rank.
            tag: the sender's tag.
        """
        self.exchange(receives=[(array, source, tag)], **call)

    def exchange(
        self,
        sends: Sequence[tuple[Any, int, int]] = (),
        receives: Sequence[tuple[Any, int, int]] = (),
        **call: Any,
    ) -> None:
        """Sends and receives several messages, none of which waits for another one.

        A message to this rank itself is received in the same call.

        Args:
            sends: arrays, the ranks they go to, and tags: the arguments of `send`.
            receives: arrays, the ranks they come from, and tags: the arguments of `receive`.
        """
        asked = self._call(**call)
        if asked.pop("protocol") != "automatic":
            raise invalid("protocol", "'automatic' for messages", repr(call["protocol"]))
        self._native.exchange(
            [self._message("sends", message, "to", written=False) for message in sends],
            [self._message("receives", message, "source", written=True) for message in receives],
            **asked,
        )

    def _message(self, argument: str, message: Any, peer: str, *, written: bool) -> Any:
        if not isinstance(message, tuple) or len(message) != 3:
            raise invalid(argument, "tuples of an array, a rank and a tag", repr(message))
        array, rank, tag = message
        given, kind = self._array("array", array, written=written, moved=True)
        return given, kind, self._rank(peer, rank), size_of("tag", tag, largest=2**24 - 2)

    @property
    def calls(self) -> int:
        """The number of the last call, counted alike on all ranks, without messages.

        After the ranks have gone on it is the number of the last call that all of them have
        finished. Calls that a CUDA graph captures are not counted.
        """
        return self._native.calls

    def go_on(self) -> int:
        """Goes on with the job's ranks of now, if it must, and returns `calls`. Collective.

        Call it after `recover`, `replace` or `shrink` of the job, and repeat the calls from there.
        Without it the next call goes on, and raises OperationAborted on a rank that has finished a
        call which not all ranks have finished; that call has done nothing then.
        """
        return self._native.go_on()

    def check(self) -> None:
        """Raises the error of the first call that failed, as far as this rank can see it."""
        self._native.check()

    def wait(self, stream: Any = None) -> None:
        """Waits for all work enqueued on a stream, then checks.

        Args:
            stream: as torch's object or an integer; None for torch's current one.
        """
        self._native.wait(stream=self._stream(stream))

    def close(self) -> None:
        """Waits for the last call and frees the memory. Collective.

        After a failed call, raises its error instead; the memory then stays taken until the world
        ends.
        """
        if not self._closed:
            self._closed = True
            self._native.close()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            self.close()

    def _array(
        self, argument: str, array: Any, *, written: bool = False, moved: bool = False
    ) -> tuple[Any, DataType]:
        """Returns an array in the form that C++ takes, and the type of its elements.

        `moved`: elements are only moved, so those of an unknown type of one byte are bytes.
        """
        arrays = arrays_of(argument, array)
        dtype = arrays.dtype(array)
        kind = DataType.__members__.get(dtype)
        if kind is None and not (moved and dtype.startswith("float8")):
            known = ", ".join(DataType.__members__)
            raise invalid(argument, f"dtype {known}", f"dtype {dtype}")
        if arrays.device(array) != self._device.name:
            raise invalid(argument, f"device {self._device.name}", f"device {arrays.device(array)}")
        if not arrays.contiguous(array):
            raise invalid(argument, "a C-contiguous array", "one with gaps or in another order")
        if written and not arrays.writable(array):
            raise invalid(argument, "an array that can be written to", "a read-only one")
        if kind is None:
            return arrays.to_native(arrays.bits(array, "uint8")), DataType.uint8
        return arrays.to_native(array), kind

    def _written(self, argument: str, array: Any, out: Any) -> tuple[Any, DataType]:
        """Returns the array for a result: `out`, or the input if that is None."""
        if out is None:
            return self._array(argument, array, written=True)
        self._same_kind(array, out)
        return self._array("out", out, written=True)

    @staticmethod
    def _same_kind(array: Any, out: Any) -> None:
        if out is None:
            return
        expected, seen = (arrays_of("out", one).dtype(one) for one in (array, out))
        if expected != seen:
            raise invalid("out", f"dtype {expected}", f"dtype {seen}")

    def _rank(self, argument: str, rank: int) -> int:
        return size_of(argument, rank, largest=self.world.size - 1)

    def _counts(self, argument: str, counts: Sequence[int] | None) -> list[int]:
        if counts is None:
            return []
        if not isinstance(counts, Sequence) or len(counts) != self.world.size:
            seen = f"{len(counts)}" if isinstance(counts, Sequence) else type(counts).__name__
            raise invalid(argument, f"{self.world.size} integers, one for each rank", seen)
        return [size_of(argument, count, largest=2**63 - 1) for count in counts]

    def _split_array(self, argument: str, array: Any) -> Any:
        given, kind = self._array(argument, array, written=True)
        shape = tuple(arrays_of(argument, array).shape(array))
        if kind != DataType.int64 or shape != (self.world.size,):
            raise invalid(argument, f"int64 [{self.world.size}]", f"{kind.name} {list(shape)}")
        return given

    def _stream(self, stream: Any) -> int:
        if stream is None:
            return self._device.stream()
        return self._device.stream_of("stream", stream)

    def _call(
        self,
        *,
        timeout: float | None = None,
        protocol: str = "automatic",
        sms: int = 0,
        stream: Any = None,
    ) -> dict[str, Any]:
        if protocol not in PROTOCOLS:
            raise invalid("protocol", " or ".join(map(repr, PROTOCOLS)), repr(protocol))
        return {
            "timeout_s": None if timeout is None else check_timeout(timeout),
            "protocol": protocol,
            "sms": size_of("sms", sms),
            "stream": self._stream(stream),
        }


def _op(name: str) -> ReduceOp:
    try:
        return ReduceOp[name]
    except (KeyError, TypeError):
        raise invalid("op", " or ".join(map(repr, ReduceOp.__members__)), repr(name)) from None


def _factor(factor: float) -> float:
    if isinstance(factor, bool) or not isinstance(factor, Real):
        raise invalid("factor", "a number", repr(factor))
    return float(factor)
