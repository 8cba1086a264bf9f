"""A text through one mixture-of-experts layer, spread over several ranks.

Words become vectors, a gate chooses experts for each, Tokenyard carries them to the ranks that hold
those experts and brings the results home, and a dense computation in one process checks every
number. Leaves out/demo/load.png, out/demo/trace.json (for ui.perfetto.dev) and
out/demo/report.json; the exit status is 0 only if all results are within tolerance.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import threading
from pathlib import Path

# Every rank is a thread or a process of its own: threads that BLAS adds would only be in the way,
# by a factor of a hundred where ranks outnumber cores. Read when NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

try:
    from moe_demo import reference, report
    from moe_demo.layer import Shape
    from moe_demo.load_plot import plot_load
    from moe_demo.rank import STEPS, RankReport, run_rank
    from moe_demo.text import Text, read_text
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    import tokenyard
except ModuleNotFoundError as missing:
    sys.exit(f"The demo needs the Python package {missing.name}: pip install '.[demo]'")

SHIPPED_TEXT = Path(__file__).parent / "data" / "alice.txt"


class Ticks:
    """Progress of a total that threads and processes report by name alone."""

    def __init__(self, console: Console) -> None:
        self._queue = multiprocessing.get_context("spawn").SimpleQueue()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=40),
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
        return Tick(self._queue, int(self._progress.add_task(f"{description:<28}", total=total)))

    def _read(self) -> None:
        while (task := self._queue.get()) is not None:
            self._progress.advance(task)


class Tick:
    """One step of one task; a rank takes it along into its process."""

    def __init__(self, queue: multiprocessing.queues.SimpleQueue[int | None], task: int) -> None:
        self._queue = queue
        self._task = task

    def __call__(self) -> None:
        self._queue.put(self._task)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="ranks (4)")
    parser.add_argument("--experts", type=int, metavar="N", help="experts in all (4 a rank)")
    parser.add_argument("--top-k", type=int, default=2, metavar="N", help="experts a word (2)")
    parser.add_argument(
        "--hidden", type=int, default=256, metavar="N", help="length of a row (256)"
    )
    parser.add_argument("--tokens", type=int, default=512, metavar="N", help="words a rank (512)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of all weights (1)")
    parser.add_argument("--processes", action="store_true", help="a process a rank, not a thread")
    parser.add_argument("--device", choices=("host", "cuda"), default="host", help="(host)")
    parser.add_argument("--text", type=Path, default=SHIPPED_TEXT, metavar="FILE", help="any text")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), metavar="FOLDER")
    chosen = parser.parse_args(arguments)
    if chosen.experts is None:
        chosen.experts = 4 * chosen.ranks
    rules = {
        "--ranks must be at least 1": chosen.ranks >= 1,
        "--tokens must be at least 1": chosen.tokens >= 1,
        "--seed must not be negative": chosen.seed >= 0,
        "--hidden must be a positive multiple of 8": chosen.hidden > 0 and chosen.hidden % 8 == 0,
        f"--experts must be a positive multiple of the {chosen.ranks} ranks": chosen.experts > 0
        and chosen.experts % max(chosen.ranks, 1) == 0,
        f"--top-k must be from 1 to 32 and at most the {chosen.experts} experts": 1
        <= chosen.top_k
        <= min(32, chosen.experts),
    }
    for rule, kept in rules.items():
        if not kept:
            parser.error(rule)
    return chosen


def check(shape: Shape, text: Text, reports: list[RankReport], ticks: Ticks) -> report.Verdict:
    expected = reference.dense(shape, text.tokens, ticks.task("dense reference", shape.experts))
    errors = [expected.error(rank, of_rank.out) for rank, of_rank in enumerate(reports)]
    return report.Verdict(errors, reference.TOLERANCE)


def main(arguments: list[str] | None = None) -> int:
    chosen = parse(arguments)
    console = Console()
    try:
        text = read_text(chosen.text, chosen.ranks, chosen.tokens)
        chosen.out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        console.print(f"[red]{error}", highlight=False)
        return 2
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
    report.print_table(console, reports, verdict)

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


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("Interrupted.")
    except tokenyard.Error as error:
        sys.exit(f"{type(error).__name__}: {error}")
