"""A compiled task graph, and the traces of its runs. See `tokenyard.megakernel`."""

from __future__ import annotations

from collections.abc import Sequence

import _tokenyard

from ..errors import invalid
from ..sizes import size_of
from ..world.world import World
from .task_graph import Graph


class Megakernel:
    """A compiled task graph on this rank. Collective: all ranks make it, and run it alike.

    It keeps the memory of its graph's tensors alive.

    Args:
        world: the ranks that take part.
        graph: this rank's graph.
        workers: blocks that run tasks; 0: chosen.
        compute_warps: compute warps per block; 0: chosen.
        unit_bytes: bytes per unit that tasks stream ahead.
        schedulers: additional blocks that assign tasks to workers at run time; 0: tasks are
            assigned when the graph is compiled.
        task_slots: with schedulers, queue slots per worker, at most 1024; schedulers wait when a
            queue is full. 0: enough for all tasks of an iteration.
        ring_units: units in flight per warp; 0: chosen.
        trace_records: number of latest tasks per worker that `trace` returns.
        check_accesses: whether to check, on the host, each access of each task: a run raises
            InvalidGraph before an access outside the task's regions or a piece. Slow.

    Raises:
        InvalidGraph: the graphs are wrong; `witness` lists the steps that lead to the fault.
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
        """Runs up to `iterations` iterations and waits for them.

        Returns:
            The number of iterations that ran, fewer than asked if the loop ended.

        Raises:
            TaskTimeout: a task could not continue before its deadline.
        """
        return self._native.run(size_of("iterations", iterations))

    def start(self) -> None:
        """Starts a run whose iterations `feed` releases; does not wait."""
        self._native.start()

    def feed(self, iterations: int = 1) -> None:
        """Releases `iterations` more iterations of a started run, up to 2**31 - 1 per run.

        Does not wait. Another thread may be in `wait` meanwhile.
        """
        self._native.feed(size_of("iterations", iterations))

    def wait(self, iterations: int) -> int:
        """Waits until `iterations` iterations of a started run have ended, or its loop has.

        Returns:
            The number that have ended; fewer than asked only if the loop has ended.
        """
        return self._native.wait(size_of("iterations", iterations))

    def stop(self) -> int:
        """Ends a started run after the iterations fed so far; returns its number of iterations."""
        return self._native.stop()

    @property
    def finished_iterations(self) -> int:
        """Number of iterations that have ended, over all runs, failed ones included."""
        return self._native.finished_iterations

    def trace(self) -> _tokenyard.TaskTrace:
        """Returns this rank's trace of the last run, which must have ended.

        Empty without `trace_records`. `perfetto()` returns the text of a trace file, `summary()`
        a breakdown of the time, `measured_costs()` the ns of each task in the order in which
        `Graph.task` added them.
        """
        return self._native.trace()

    def traces(self) -> list[_tokenyard.TaskTrace]:
        """Returns the traces of all ranks of the last run, by rank. Collective."""
        return self._native.traces()


def perfetto(traces: Sequence[_tokenyard.TaskTrace]) -> str:
    """Returns a trace file for ui.perfetto.dev that shows all ranks on one clock.

    Each rank is a process, and arrows show signals between ranks. Clocks of different GPUs are not
    comparable, so each is shifted by an offset estimated from these signals; the process's label
    gives the offset and its uncertainty.

    Args:
        traces: traces of one run, as `Megakernel.traces` returns them.

    Raises:
        InvalidArgument: two traces are of one rank.
    """
    return _tokenyard.TaskTrace.perfetto_of(traces)
