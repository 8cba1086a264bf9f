"""A compiled graph of tasks, and the traces of its runs. See `tokenyard.megakernel`."""

from __future__ import annotations

from collections.abc import Sequence

import _tokenyard

from ..errors import invalid
from ..sizes import size_of
from ..world.world import World
from .task_graph import Graph


class Megakernel:
    """A compiled graph on this rank. Collective: all ranks make it, and run it alike.

    It keeps the memory of its graph's tensors.

    Args:
        world: the ranks that take part.
        graph: this rank's.
        workers: blocks that run tasks; 0 leaves it to Tokenyard.
        compute_warps: of a block; 0 leaves it to Tokenyard.
        unit_bytes: of what tasks stream ahead.
        schedulers: blocks besides, which give tasks to workers while the graph runs; 0: tasks are
            placed when the graph is compiled.
        task_slots: with schedulers, room for so many tasks a worker in the queue, at most 1024;
            schedulers wait where it is full. 0: room for all tasks of an iteration.
        ring_units: units that each warp may hold; 0 leaves it to Tokenyard.
        trace_records: newest tasks of each worker that `trace` tells of.
        check_accesses: on hosts, looks at each access of each task and ends a run with InvalidGraph
            before one outside the task's regions, or behind a piece, happens. Slow.

    Raises:
        InvalidGraph: the graphs cannot work; its `witness` leads to the fault, step by step.
        Unsupported: `check_accesses` on a GPU, or for the graph of a `DenseDecoder`.
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
        task_slots: int = 0,
        trace_records: int = 0,
        check_accesses: bool = False,
    ) -> None:
        for argument, value, kind in [("world", world, World), ("graph", graph, Graph)]:
            if not isinstance(value, kind):
                raise invalid(argument, f"a {kind.__name__}", repr(value))
        self._native = _tokenyard.Megakernel.make(
            world._native,
            graph._native,
            workers=size_of("workers", workers),
            compute_warps=size_of("compute_warps", compute_warps),
            unit_bytes=size_of("unit_bytes", unit_bytes),
            ring_units=size_of("ring_units", ring_units),
            schedulers=size_of("schedulers", schedulers),
            task_slots=size_of("task_slots", task_slots),
            trace_records=size_of("trace_records", trace_records, largest=2**20),
            check_accesses=bool(check_accesses),
        )

    def run(self, iterations: int) -> int:
        """Runs so many iterations, or fewer if the loop ends; returns how many."""
        return self._native.run(size_of("iterations", iterations))

    def start(self) -> None:
        """Begins a run that executes an iteration whenever one has been fed."""
        self._native.start()

    def feed(self, iterations: int = 1) -> None:
        """Allows so many more iterations of a run that was started: up to 2**31 - 1 of it.

        Another thread may be in `wait` meanwhile.
        """
        self._native.feed(size_of("iterations", iterations))

    def wait(self, iterations: int) -> int:
        """Until so many iterations of the run that was started have ended, or its loop has.

        Returns how many have; fewer than asked only if the loop has ended.
        """
        return self._native.wait(size_of("iterations", iterations))

    def stop(self) -> int:
        """Ends the run after what has been fed; returns how many iterations it had."""
        return self._native.stop()

    @property
    def finished_iterations(self) -> int:
        """Iterations that have ended, over all runs, even where one has failed."""
        return self._native.finished_iterations

    def trace(self) -> _tokenyard.TaskTrace:
        """Of the last run, on this rank; empty without `trace_records`. It must have ended.

        `perfetto()` is a file's text, `summary()` tells where time went, `measured_costs()` are
        ns of each task, in the order in which `Graph.task` added them.
        """
        return self._native.trace()

    def traces(self) -> list[_tokenyard.TaskTrace]:
        """Of the last run, on all ranks, by rank. Collective: every rank gets all of them."""
        return self._native.traces()


def perfetto(traces: Sequence[_tokenyard.TaskTrace]) -> str:
    """One file's text, for ui.perfetto.dev: a process a rank, arrows between ranks, one clock.

    Clocks of different GPUs are not comparable. Each is moved to where the signals between ranks
    say that it must be; by how much, and how sure that is, stands at its process.

    Args:
        traces: of ranks of one run, as `Megakernel.traces` returns them.

    Raises:
        InvalidArgument: two of them are of one rank.
    """
    return _tokenyard.TaskTrace.perfetto_of(traces)
