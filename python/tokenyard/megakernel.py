"""Graphs of tasks that one persistent kernel runs, iteration after iteration.

    TensorMemory  memory of this rank, and of all ranks, for a graph's tensors
    Graph         tasks with what they read, write, wait for and signal
    Megakernel    a graph, proved and compiled, ready to run

Task types are C++ (src/megakernel/tasks); this is how Python puts them together. Every rank writes
a graph of its own and declares the same tensors and events in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import _tokenyard

from .errors import invalid
from .world import World

Piece = _tokenyard.Piece
"""A place in memory: what `TensorMemory` gives out, and what pointers of tasks are made of."""

DecoderShape = _tokenyard.DecoderShape
"""The shape of a model for `DenseDecoder`."""

THIS_RANK = 0xFFFFFFFF
NO_TOKEN = 0xFFFFFFFF


class TensorMemory:
    """Memory of one rank. It lives as long as one of its pieces does."""

    def __init__(self, world: World) -> None:
        self._native = _tokenyard.TensorMemory(world._native)

    def local(self, what: int | np.ndarray) -> Piece:
        """Memory for this rank's tasks: so many zeroed bytes, or a copy of an array."""
        if isinstance(what, int):
            return self._native.local(what)
        piece = self._native.local(what.nbytes)
        self.write(piece, what)
        return piece

    def shared(self, size: int) -> list[Piece]:
        """Collective. Zeroed memory on every rank, [ranks], which all ranks' tasks reach."""
        return self._native.shared(size)

    def write(self, to: Piece, array: np.ndarray) -> None:
        """Copies an array's bytes there; nothing may run that uses them."""
        self._native.write(to, np.ascontiguousarray(array).tobytes())

    def read(self, source: Piece, dtype: Any, count: int) -> np.ndarray:
        """What lies there, as `count` elements."""
        kind = np.dtype(dtype)
        return np.frombuffer(self._native.read(source, count * kind.itemsize), kind)


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

    def before(self) -> Wait:
        """A wait for the iteration before."""
        return Wait(self, 1)


@dataclass(frozen=True)
class Signal:
    """So many signals to an event, of this rank or another."""

    event: Event
    rank: int = THIS_RANK
    count: int = 1


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
    ...     Megakernel(world, graph).run(1)
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
        if size > piece.bytes:
            raise invalid(
                f"size of tensor {name!r}", f"at most its piece's {piece.bytes}", str(size)
            )
        return Tensor(self._native.tensor(name, bytes=size, given=given), size, piece)

    def event(self, name: str) -> Event:
        """Declares an event; all ranks declare the same ones in the same order."""
        return Event(self._native.event(name))

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
        worker: int | None = None,
        cost_ns: int = 1000,
        **args: Piece | int | float | None,
    ) -> Task:
        """Adds a task; other keywords are its arguments, by the names of the C++ type."""
        all_waits = [wait if isinstance(wait, Wait) else Wait(wait) for wait in waits]
        all_signals = [to if isinstance(to, Signal) else Signal(to) for to in signals]
        return Task(
            self._native.add(
                kind,
                dict(args),
                name=name,
                reads=[region._tuple() for region in reads],
                writes=[region._tuple() for region in writes],
                adds=[region._tuple() for region in adds],
                streams=[region._tuple() for region in streams],
                waits=[(wait.event.id, wait.lag) for wait in all_waits],
                signals=[(signal.event.id, signal.rank, signal.count) for signal in all_signals],
                worker=worker,
                cost_ns=cost_ns,
            )
        )

    def loop_on(self, event: Event) -> None:
        """An iteration ends with this event; tasks before it may end the loop."""
        self._native.loop_on(event.id)

    def once(self) -> None:
        """Each run is one iteration, so nothing need be ordered between iterations."""
        self._native.once()

    def set_costs(self, costs: Mapping[Task, int]) -> None:
        """What tasks cost in ns, for placement: from the trace of an earlier kernel."""
        for task, cost_ns in costs.items():
            self._native.set_cost(task.id, cost_ns)


@dataclass(frozen=True)
class LayerPieces:
    """Where a layer's weights lie, all BF16, packed as the tasks read them."""

    attention_norm: Piece
    """[hidden]"""
    qkv: Piece
    """[KV heads of the rank, its query heads and K and V, dim, hidden]"""
    out: Piece
    """[KV heads of the rank, hidden, its query heads * dim]"""
    mlp_norm: Piece
    """[hidden]"""
    gate_up: Piece
    """[inner of the rank, gate and up, hidden]"""
    down: Piece
    """[hidden, inner of the rank]"""


class DenseDecoder:
    """A Llama-shaped step as a graph whose stages hand on words: the fastest.

    The ranks of the memory's world share the model (tensor parallel), and all of them make it: of R
    ranks, rank r has the r-th R-th of the KV heads, of the inner elements and of the head's tokens.

    Args:
        memory: where its tensors go.
        shape: of the whole model; `shape.check(blocks, ranks)` names what the tasks cannot do.
        embedding, final_norm, head: [vocabulary, hidden], [hidden], [this rank's part of the
            vocabulary, hidden]; BF16.
        layers: this rank's part of the layers' weights.
        prompts: the first tokens of 1, 2, 4 or 8 sequences, decoded side by side; alike on all
            ranks.
        stop: the token that ends a sequence, if any. The loop ends when all have ended.
        blocks: that share each stage, one worker each; 0 leaves it to Tokenyard.

    Raises:
        InvalidArgument: a shape that the tasks cannot do, or weights of another size.
    """

    def __init__(
        self,
        memory: TensorMemory,
        shape: DecoderShape,
        *,
        embedding: Piece,
        final_norm: Piece,
        head: Piece,
        layers: Sequence[LayerPieces],
        prompts: Sequence[Sequence[int]],
        stop: int | None = None,
        blocks: int = 0,
    ) -> None:
        self._native = _tokenyard.DenseDecoder.make(
            memory._native,
            shape,
            outer=[embedding, final_norm, head],
            layers=[
                [w.attention_norm, w.qkv, w.out, w.mlp_norm, w.gate_up, w.down] for w in layers
            ],
            blocks=blocks,
            prompts=[list(prompt) for prompt in prompts],
            stop_token=NO_TOKEN if stop is None else stop,
        )
        self.graph = Graph._of(self._native.graph)

    @property
    def blocks(self) -> int:
        """Workers that its megakernel needs."""
        return self._native.blocks

    @property
    def unit_bytes(self) -> int:
        """Of what its tasks stream."""
        return self._native.unit_bytes

    @property
    def logits(self) -> Piece:
        """Of the last step: [sequences, this rank's part of the vocabulary] float32."""
        return self._native.logits

    @property
    def tokens(self) -> Piece:
        """What has been decided, by position: [sequences, positions_max + 1] uint32."""
        return self._native.tokens

    @property
    def status(self) -> Piece:
        """[sequences] how they stand: 0 goes on, 1 stopped, 2 cache full, 3 not a number."""
        return self._native.status


class Megakernel:
    """A compiled graph on this rank. Collective: all ranks make it, and run it alike.

    Args:
        world: the ranks that take part.
        graph: this rank's.
        workers: blocks that run tasks; 0 leaves it to Tokenyard.
        compute_warps: of a block; 0 leaves it to Tokenyard.
        unit_bytes: of what tasks stream ahead.
        schedulers: blocks besides, which give tasks to workers while the graph runs; 0: tasks are
            placed when the graph is compiled.
        ring_units: units that each warp may hold; 0 leaves it to Tokenyard.
        trace_records: newest tasks of each worker that `trace` tells of.

    Raises:
        InvalidArgument: the graphs cannot work; the message leads to the fault, step by step.
    """

    def __init__(
        self,
        world: World,
        graph: Graph,
        *,
        workers: int = 0,
        compute_warps: int = 0,
        unit_bytes: int = 4096,
        ring_units: int = 0,
        schedulers: int = 0,
        trace_records: int = 0,
    ) -> None:
        self._native = _tokenyard.Megakernel.make(
            world._native,
            graph._native,
            workers=workers,
            compute_warps=compute_warps,
            unit_bytes=unit_bytes,
            ring_units=ring_units,
            schedulers=schedulers,
            trace_records=trace_records,
        )

    def run(self, iterations: int) -> int:
        """Runs so many iterations, or fewer if the loop ends; returns how many."""
        return self._native.run(iterations)

    def start(self) -> None:
        """Begins a run that executes an iteration whenever one has been fed."""
        self._native.start()

    def feed(self, iterations: int = 1) -> None:
        """Allows so many more iterations of a run that was started."""
        self._native.feed(iterations)

    def wait(self, iterations: int) -> None:
        """Until so many iterations of the run that was started have ended."""
        self._native.wait(iterations)

    def stop(self) -> int:
        """Ends the run after what has been fed; returns how many iterations it had."""
        return self._native.stop()

    @property
    def finished_iterations(self) -> int:
        """Iterations that have ended, over all runs, even where one has failed."""
        return self._native.finished_iterations

    def trace(self) -> Any:
        """Of the last run: `perfetto()` a file's text, `summary()`, `measured_costs()` by task."""
        return self._native.trace()
