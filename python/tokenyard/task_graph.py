"""Graphs of tasks, and the memory of their tensors. See `tokenyard.megakernel`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

import numpy as np

import _tokenyard

from .sizes import size_of
from .world import World

Piece = _tokenyard.Piece
"""A place in memory: what `TensorMemory` gives out, and what pointers of tasks are made of."""

THIS_RANK = 0xFFFFFFFF
BYTES_MAX = 2**63 - 1


class TensorMemory:
    """Memory of one rank. It lives as long as one of its pieces does, or a graph or a megakernel
    that was given one; until then its world lives, too."""

    def __init__(self, world: World) -> None:
        self._native = _tokenyard.TensorMemory(world._native)

    def local(self, what: SupportsIndex | np.ndarray) -> Piece:
        """Memory for this rank's tasks: so many zeroed bytes, or a copy of an array."""
        if not isinstance(what, np.ndarray):
            return self._native.local(size_of("bytes", what, largest=BYTES_MAX))
        piece = self._native.local(what.nbytes)
        self.write(piece, what)
        return piece

    def visible(self, array: np.ndarray) -> tuple[Piece, np.ndarray]:
        """A copy of an array for this rank's tasks and its host alike, and the host's end of it.

        Inputs of runs that are fed: what is written there before `Megakernel.feed`, that
        iteration's tasks see; what they wrote, the host reads after `Megakernel.wait`.
        """
        piece, seen = self._native.visible(array.nbytes)
        here = seen.view(array.dtype).reshape(array.shape)
        here[...] = array
        return piece, here

    def shared(self, size: int) -> list[Piece]:
        """Collective. Zeroed memory on every rank, [ranks], which all ranks' tasks reach."""
        return self._native.shared(size_of("size", size, largest=BYTES_MAX))

    def write(self, to: Piece, array: np.ndarray) -> None:
        """Copies an array's bytes there; nothing may run that uses them."""
        self._native.write(to, np.ascontiguousarray(array).tobytes())

    def read(self, source: Piece, dtype: Any, count: int) -> np.ndarray:
        """A copy of what lies there, as `count` elements."""
        kind = np.dtype(dtype)
        return np.frombuffer(self._native.read(source, count * kind.itemsize), kind).copy()


@dataclass(frozen=True)
class Region:
    """Bytes [begin, end) of a tensor of a rank."""

    tensor: int
    begin: int
    end: int
    rank: int = THIS_RANK

    def of(self, rank: int) -> Region:
        """The same bytes of another rank's tensor."""
        return Region(self.tensor, self.begin, self.end, rank)

    def _tuple(self) -> tuple[int, int, int, int]:
        return (self.tensor, self.begin, self.end, self.rank)


@dataclass(frozen=True)
class Tensor:
    """A tensor of a graph, and where it lies."""

    id: int
    bytes: int
    piece: Piece = field(repr=False)

    def all(self) -> Region:
        """All of it."""
        return Region(self.id, 0, self.bytes)

    def part(self, begin: int, end: int) -> Region:
        """Bytes [begin, end) of it."""
        return Region(self.id, begin, end)


@dataclass(frozen=True)
class Event:
    """Complete in an iteration once all its signals of that iteration have come."""

    id: int

    def on(self, rank: int, count: int = 1) -> Signal:
        """A signal to this event of another rank."""
        return Signal(self, rank, count)

    def often(self, rank: int = THIS_RANK) -> Signal:
        """Signals to this event, which has `dynamic_max`: as many as the task finds."""
        return Signal(self, rank, dynamic=True)

    def before(self) -> Wait:
        """A wait for the iteration before."""
        return Wait(self, 1)


@dataclass(frozen=True)
class Signal:
    """So many signals to an event, of this rank or another."""

    event: Event
    rank: int = THIS_RANK
    count: int = 1
    dynamic: bool = False
    """The task's body signals, as often as it finds."""


@dataclass(frozen=True)
class Wait:
    """A wait for an event, of this iteration or, with lag 1, of the one before."""

    event: Event
    lag: int = 0


@dataclass(frozen=True)
class Task:
    """A task of a graph."""

    id: int


class Graph:
    """What one rank does in an iteration.

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
        self._native = _tokenyard.TaskGraph(rank=world.rank, ranks=world.size)

    @classmethod
    def _of(cls, native: Any) -> Graph:
        graph = cls.__new__(cls)
        graph._native = native
        return graph

    def tensor(self, name: str, piece: Piece, size: int, *, given: bool = False) -> Tensor:
        """Declares a tensor of `size` bytes; `given`: it may be read before a task writes it."""
        size_of(f"size of tensor {name!r}", size, largest=piece.bytes)
        return Tensor(self._native.tensor(name, piece, bytes=size, given=given), size, piece)

    def event(self, name: str, *, count: int | None = None, dynamic_max: int = 0) -> Event:
        """Declares an event; all ranks declare the same ones in the same order.

        Args:
            name: for errors and traces.
            count: signals an iteration, if you know: others are refused.
            dynamic_max: of an event of which only tasks know how often it is signalled: at most
                so often. One task `expects` it and says how often, others signal it `often`.
        """
        return Event(
            self._native.event(
                name,
                count=None if count is None else size_of("count", count),
                dynamic_max=size_of("dynamic_max", dynamic_max),
            )
        )

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
        """Adds a task; other keywords are its arguments, by the names of the C++ type."""
        given = {key: arg.id if isinstance(arg, Event) else arg for key, arg in args.items()}
        all_waits = [wait if isinstance(wait, Wait) else Wait(wait) for wait in waits]
        all_signals = [to if isinstance(to, Signal) else Signal(to) for to in signals]
        return Task(
            self._native.add(
                kind,
                given,
                name=name,
                reads=[region._tuple() for region in reads],
                writes=[region._tuple() for region in writes],
                adds=[region._tuple() for region in adds],
                streams=[region._tuple() for region in streams],
                waits=[(wait.event.id, wait.lag) for wait in all_waits],
                signals=[
                    (signal.event.id, signal.rank, signal.count, signal.dynamic)
                    for signal in all_signals
                ],
                expects=[event.id for event in expects],
                worker=None if worker is None else size_of("worker", worker),
                cost_ns=size_of("cost_ns", cost_ns, largest=2**64 - 1),
            )
        )

    def loop_on(self, event: Event) -> None:
        """An iteration ends with this event; tasks before it may end the loop."""
        self._native.loop_on(event.id)

    def once(self) -> None:
        """Each run is one iteration, so nothing need be ordered between iterations."""
        self._native.once()

    def set_costs(self, costs: Mapping[Task, int]) -> None:
        """What tasks cost in ns, for placement: from the trace of an earlier kernel, as in
        `set_costs(dict(zip(tasks, trace.measured_costs())))`."""
        for task, cost_ns in costs.items():
            self._native.set_cost(task.id, cost_ns)
