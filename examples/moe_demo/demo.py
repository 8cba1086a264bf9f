"""Runs the demo: the layer on its ranks, the dense reference, and the report."""

from __future__ import annotations

import argparse
import multiprocessing
import threading

from program import Refused
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import tokenyard

from . import reference, report
from .layer import Shape
from .load_plot import plot_load
from .rank import STEPS, RankReport, run_rank
from .text import Text, read_text


class Ticks:
    """Progress bars that threads and processes advance."""

    def __init__(self, console: Console) -> None:
        self._queue = multiprocessing.get_context("spawn").SimpleQueue()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=min(40, max(4, console.width - 50))),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Ticks:
        self._progress.start()
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._reader.join(1)
        self._progress.stop()

    def task(self, description: str, total: int) -> Tick:
        return Tick(self._queue, int(self._progress.add_task(f"{description:<18}", total=total)))

    def _read(self) -> None:
        while (task := self._queue.get()) is not None:
            self._progress.advance(task)


class Tick:
    """Advances one task by a step; can be sent to a rank's process."""

    def __init__(self, queue: multiprocessing.queues.SimpleQueue[int | None], task: int) -> None:
        self._queue = queue
        self._task = task

    def __call__(self) -> None:
        self._queue.put(self._task)


def check(shape: Shape, text: Text, reports: list[RankReport], ticks: Ticks) -> report.Verdict:
    expected = reference.dense(shape, text.tokens, ticks.task("dense reference", shape.experts))
    errors = [expected.error(rank, of_rank.out) for rank, of_rank in enumerate(reports)]
    return report.Verdict(errors, reference.TOLERANCE)


def run(chosen: argparse.Namespace) -> int:
    """Runs the demo as its arguments say; returns the exit status."""
    console = Console()
    try:
        text = read_text(chosen.text, chosen.ranks, chosen.tokens)
    except (OSError, ValueError) as error:
        raise Refused(f"--text: {error}") from None
    shape = Shape(
        ranks=chosen.ranks,
        experts=chosen.experts,
        topk=chosen.top_k,
        hidden=chosen.hidden,
        tokens=chosen.tokens,
        words=len(text.words),
        seed=chosen.seed,
    )
    with Ticks(console) as ticks:
        kind = "processes" if chosen.processes else "threads"
        reports = tokenyard.launch(
            run_rank,
            ranks=shape.ranks,
            processes=chosen.processes,
            device=chosen.device,
            args=(shape, text.tokens, ticks.task(f"layer on {kind}", shape.ranks * STEPS)),
        )
        verdict = check(shape, text, reports, ticks)
    report.print_result(console, reports, verdict)

    plot_load(chosen.out / "load.png", shape, text, reports)
    report.write_trace(chosen.out / "trace.json", reports)
    report.write_report(chosen.out / "report.json", shape, reports, verdict)
    console.print(
        f"{'[green]Right' if verdict.ok else '[red]Wrong'}[/]: the largest error is "
        f"{verdict.max_error:.5f} of the numbers summed; {verdict.tolerance:.5f} is allowed.",
        highlight=False,
    )
    console.print(f"See {chosen.out}/load.png, trace.json (ui.perfetto.dev) and report.json.")
    return 0 if verdict.ok else 1
