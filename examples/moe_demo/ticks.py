"""Progress bars that the ranks of an example advance, as threads or processes."""

from __future__ import annotations

import multiprocessing
import threading

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


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
