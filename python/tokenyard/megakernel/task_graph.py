"""Task graphs and the memory of their tensors. See `tokenyard.megakernel`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex, TypeVar

import numpy as np

import _tokenyard

from ..errors import invalid
from ..sizes import size_of
from ..world.world import World

Piece = _tokenyard.Piece
"""A range of memory that `TensorMemory` allocated; tasks take it for their pointers."""

THIS_RANK = 0xFFFFFFFF
BYTES_MAX = 2**63 - 1

T = TypeVar("T")


def _of_type(argument: str, value: Any, kind: type[T], expected: str) -> T:
    """Returns `value`; raises InvalidArgument if it is not of type `kind`."""
    if not isinstance(value, kind):
        raise invalid(argument, expected, repr(value))
    return value


def _piece(argument: str, value: Any) -> Piece:
    return _of_type(argument, value, Piece, "a Piece of a TensorMemory")


def _array(argument: str, value: Any) -> np.ndarray:
    """Returns `value`; raises InvalidArgument if it is no array or holds Python objects."""
    array = _of_type(argument, value, np.ndarray, "an array of NumPy")
    if array.dtype.hasobject:
        raise invalid(argument, "elements that are numbers", f"dtype {array.dtype}")
    return array


def _dtype_name(array: np.ndarray) -> str:
    return array.dtype.name if array.dtype.isnative else array.dtype.str


class TensorMemory:
    """Allocates memory of one rank for the tensors of task graphs.

    The memory, and the world, stay alive as long as one of its pieces, or a graph or megakernel
    that uses one.
    """

    def __init__(self, world: World) -> None:
        world = _of_type("world", world, World, "a World")
        self._native = _tokenyard.TensorMemory(world._native)

    def local(self, what: SupportsIndex | np.ndarray) -> Piece:
        """Allocates memory for this rank's tasks: zeroed, or a copy of an array.

        A piece made from an array remembers its dtype, and task arguments of another dtype are
        rejected.

        Args:
            what: a number of bytes, or a NumPy array.
        """
        if not isinstance(what, np.ndarray):
            return self._native.local(size_of("bytes", what, largest=BYTES_MAX))
        array = _array("array", what)
        piece = self._native.local(array.nbytes, dtype=_dtype_name(array))
        self.write(piece, array)
        return piece

    def visible(self, array: np.ndarray) -> tuple[Piece, np.ndarray]:
        """Copies an array to memory that both this rank's tasks and its host access.

        Meant for inputs and outputs of runs that are fed: an iteration's tasks see what the host
        wrote before `Megakernel.feed`, and the host sees what they wrote after `Megakernel.wait`.

        Returns:
            The piece for tasks, and an array over the same memory for the host.
        """
        array = _array("array", array)
        piece, seen = self._native.visible(array.nbytes, dtype=_dtype_name(array))
        here = seen.view(array.dtype).reshape(array.shape)
        here[...] = array
        return piece, here

    def shared(self, size: int) -> list[Piece]:
        """Allocates `size` zeroed bytes on every rank, reachable by all ranks' tasks. Collective.

        Returns:
            [ranks] the piece on each rank.
        """
        return self._native.shared(size_of("size", size, largest=BYTES_MAX))

    def write(self, to: Piece, array: np.ndarray) -> None:
        """Copies an array's bytes into a piece. No run that uses the piece may be in progress."""
        data = np.ascontiguousarray(_array("array", np.asarray(array)))
        self._native.write(_piece("to", to), data.tobytes())

    def read(self, source: Piece, dtype: Any, count: int) -> np.ndarray:
        """Returns a copy of the first `count` elements of a piece, as `dtype`.

        No run that writes the piece may be in progress.
        """
        kind = np.dtype(dtype)
        if kind.hasobject or kind.itemsize == 0:
            raise invalid("dtype", "elements that are numbers", str(kind))
        most = _piece("source", source).bytes // kind.itemsize
        size_of("count", count, largest=most)
        return np.frombuffer(self._native.read(source, count * kind.itemsize), kind).copy()


@dataclass(frozen=True)
class Region:
    """Bytes [begin, end) of a rank's tensor."""

    tensor: int
    begin: int
    end: int
    rank: int = THIS_RANK
    graph: Any = field(default=None, repr=False)
    """The graph that the tensor belongs to."""

    def of(self, rank: int) -> Region:
        """Returns the same bytes of another rank's tensor."""
        return Region(self.tensor, self.begin, self.end, rank, self.graph)

    def _tuple(self, argument: str) -> tuple[int, int, int, int]:
        return (
            size_of(f"{argument}: tensor", self.tensor),
            size_of(f"{argument}: begin", self.begin, largest=BYTES_MAX),
            size_of(f"{argument}: end", self.end, largest=BYTES_MAX),
            size_of(f"{argument}: rank", self.rank),
        )


@dataclass(frozen=True)
class Tensor:
    """A tensor of a graph, and its memory."""

    id: int
    bytes: int
    piece: Piece = field(repr=False)
    graph: Any = field(default=None, repr=False)

    def all(self) -> Region:
        """Returns the region of all its bytes."""
        return Region(self.id, 0, self.bytes, graph=self.graph)

    def part(self, begin: int, end: int) -> Region:
        """Returns the region of its bytes [begin, end)."""
        size_of("begin of a part", begin, largest=self.bytes)
        size_of("end of a part", end, smallest=begin, largest=self.bytes)
        return Region(self.id, begin, end, graph=self.graph)


@dataclass(frozen=True)
class Event:
    """An event, complete in an iteration once all its signals of that iteration have arrived."""

    id: int
    graph: Any = field(default=None, repr=False)
    """The graph that the event belongs to."""

    def on(self, rank: int, count: int = 1) -> Signal:
        """Returns `count` signals to this event on another rank."""
        return Signal(self, rank, count)

    def often(self, rank: int = THIS_RANK) -> Signal:
        """Returns signals to this event whose number the task decides; it needs `dynamic_max`."""
        return Signal(self, rank, dynamic=True)

    def before(self) -> Wait:
        """Returns a wait for this event in the previous iteration."""
        return Wait(self, 1)


@dataclass(frozen=True)
class Signal:
    """Signals to an event, on this rank or another."""

    event: Event
    rank: int = THIS_RANK
    count: int = 1
    dynamic: bool = False
    """Whether the task's body decides the number of signals."""


@dataclass(frozen=True)
class Wait:
    """A wait for an event of this iteration or, with lag 1, of the previous one."""

    event: Event
    lag: int = 0


@dataclass(frozen=True)
class Task:
    """A task of a graph."""

    id: int
    graph: Any = field(default=None, repr=False)


class Graph:
    """The tasks that one rank runs in an iteration, with their tensors and events.

    >>> def sum_of(world):
    ...     memory = TensorMemory(world)
    ...     parts = memory.local(np.arange(6, dtype=np.float32))
    ...     graph = Graph(world)
    ...     given = graph.tensor("parts", parts, 24, given=True)
    ...     total = graph.tensor("total", memory.local(8), 8)
    ...     graph.task("reduce", reads=[given.all()], writes=[total.all()], parts=parts,
    ...                residual=None, y=total.piece, part_count=3, stride=2, count=2)
    ...     tokenyard.megakernel.Megakernel(world, graph).run(1)
    ...     return memory.read(total.piece, np.float32, 2).tolist()
    >>> tokenyard.launch(sum_of, ranks=1)
    [[6.0, 9.0]]
    """

    def __init__(self, world: World) -> None:
        world = _of_type("world", world, World, "a World")
        self._native = _tokenyard.TaskGraph(rank=world.rank, ranks=world.size)

    @classmethod
    def _of(cls, native: Any) -> Graph:
        graph = cls.__new__(cls)
        graph._native = native
        return graph

    def tensor(self, name: str, piece: Piece, size: int, *, given: bool = False) -> Tensor:
        """Declares a tensor; all ranks declare the same tensors in the same order.

        Args:
            name: name for errors and traces.
            piece: memory that holds it.
            size: its bytes.
            given: whether tasks may read it before a task has written it.

        Raises:
            InvalidArgument: the piece is too small, another rank's, or overlaps another tensor.
        """
        _of_type("name of a tensor", name, str, "a text")
        piece = _piece(f"piece of tensor {name!r}", piece)
        size = size_of(f"size of tensor {name!r}", size, largest=piece.bytes)
        made = self._native.tensor(name, piece, bytes=size, given=bool(given))
        return Tensor(made, size, piece, self._native)

    def event(self, name: str, *, count: int | None = None, dynamic_max: int = 0) -> Event:
        """Declares an event; all ranks declare the same events in the same order.

        Args:
            name: name for errors and traces.
            count: signals per iteration, if known; the graph is rejected if it has another number.
            dynamic_max: largest number of signals, for an event whose number only tasks know. One
                task `expects` it and sets the number; others signal it with `Event.often`.
        """
        _of_type("name of an event", name, str, "a text")
        made = self._native.event(
            name,
            count=None if count is None else size_of("count", count),
            dynamic_max=size_of("dynamic_max", dynamic_max),
        )
        return Event(made, self._native)

    def task(
        self,
        kind: str,
        *,
        name: str = "",
        reads: Iterable[Region] = (),
        writes: Iterable[Region] = (),
        adds: Iterable[Region] = (),
        streams: Iterable[Region] = (),
        waits: Sequence[Event | Wait] = (),
        signals: Sequence[Event | Signal] = (),
        expects: Sequence[Event] = (),
        worker: int | None = None,
        cost_ns: int = 1000,
        **args: Piece | Event | int | float | None,
    ) -> Task:
        """Adds a task; further keywords are its arguments, named as in the C++ type.

        Args:
            kind: name of the task type.
            name: name for errors and traces.
            reads, writes, adds, streams: regions that it reads, writes, adds to, or streams ahead.
            waits: events that it awaits.
            signals: events that it signals when it has run.
            expects: events with `dynamic_max` whose number of signals it sets.
            worker: the worker that runs it; None: chosen.
            cost_ns: estimated duration in ns, for placement.

        Raises:
            InvalidArgument: an argument is missing, out of range, or names less memory than the
                task accesses; or a tensor or event belongs to another graph. The graph is
                unchanged.
        """
        _of_type("kind of a task", kind, str, "a text")
        _of_type("name of a task", name, str, "a text")
        of = f"of task {name or kind!r}"
        given = {
            key: (self._event(f"{key} {of}", arg),) if isinstance(arg, Event) else arg
            for key, arg in args.items()
        }
        return Task(
            self._native.add(
                kind,
                given,
                name=name,
                reads=self._regions(f"reads {of}", reads),
                writes=self._regions(f"writes {of}", writes),
                adds=self._regions(f"adds {of}", adds),
                streams=self._regions(f"streams {of}", streams),
                waits=[self._wait(of, wait) for wait in waits],
                signals=[self._signal(of, signal) for signal in signals],
                expects=[self._event(f"events {of}", event) for event in expects],
                worker=None if worker is None else size_of("worker", worker),
                cost_ns=size_of("cost_ns", cost_ns, largest=2**64 - 1),
            ),
            self._native,
        )

    def _event(self, argument: str, event: Any) -> int:
        ours = _of_type(argument, event, Event, "an Event")
        self._require_own(argument, ours)
        return ours.id

    def _require_own(self, argument: str, what: Event | Region | Task) -> None:
        if what.graph is not self._native:
            whose = "nobody's" if what.graph is None else "another graph's"
            raise invalid(argument, "what this graph has made", f"{whose} {what!r}")

    def _regions(self, argument: str, regions: Iterable[Region]) -> list[tuple[int, int, int, int]]:
        tuples = []
        for region in regions:
            _of_type(argument, region, Region, "Regions, as Tensor.all() and part() make them")
            self._require_own(argument, region)
            tuples.append(region._tuple(argument))
        return tuples

    def _wait(self, of: str, wait: Event | Wait) -> tuple[int, int]:
        event, lag = (wait.event, wait.lag) if isinstance(wait, Wait) else (wait, 0)
        return self._event(f"events {of}", event), size_of(f"lag {of}", lag, largest=1)

    def _signal(self, of: str, signal: Event | Signal) -> tuple[int, int, int, bool]:
        to = signal if isinstance(signal, Signal) else Signal(signal)
        event = self._event(f"events {of}", to.event)
        rank, count = size_of(f"rank of a signal {of}", to.rank), size_of(f"count {of}", to.count)
        return event, rank, count, bool(to.dynamic)

    def loop_on(self, event: Event) -> None:
        """Ends each iteration with this event; tasks before it may end the loop."""
        self._native.loop_on(self._event("loop event", event))

    def once(self) -> None:
        """Limits each run to one iteration, so that none needs an order against the next."""
        self._native.once()

    def set_costs(self, costs: Mapping[Task, int]) -> None:
        """Sets the duration of tasks in ns, for placement.

        An earlier kernel's trace has them: `set_costs(dict(zip(tasks, trace.measured_costs())))`.
        """
        for task, cost_ns in costs.items():
            self._require_own("task of a cost", _of_type("task of a cost", task, Task, "a Task"))
            self._native.set_cost(task.id, size_of("cost_ns", cost_ns, largest=2**64 - 1))
