"""Reports a run: a table, a JSON report, a trace for Perfetto."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from .layer import Shape
from .rank import RankReport
from .traffic import Traffic

PHASES = ("gate", "dispatch", "experts", "combine")
CAPTION = "phases in ms, all steps together"


@dataclass(frozen=True)
class Verdict:
    """The errors of the ranks' results against the reference."""

    errors: list[float]
    """[ranks] largest error of each rank's tokens."""
    tolerance: float

    @property
    def max_error(self) -> float:
        return max(self.errors)

    @property
    def ok(self) -> bool:
        # Written so that NaN, which compares false, fails.
        return self.max_error <= self.tolerance


def phase_ms(report: RankReport, phase: str) -> float:
    """Returns the ms of a phase, all steps together."""
    return 1e3 * sum(span.end_s - span.begin_s for span in report.spans if span.phase == phase)


COLUMNS = ("rank", "tokens", "sent", "received", *PHASES, "error")


def print_result(console: Console, reports: list[RankReport], verdict: Verdict) -> None:
    """Prints a line per rank, or a block per rank if the terminal is narrow."""
    rows = [_cells(rank, reports, verdict) for rank in range(len(reports))]
    table = _table(rows)
    unbound = console.options.update(width=1000)
    if Measurement.get(console, unbound, table).maximum <= console.width:
        console.print(table)
        return
    for row in rows:
        console.print(
            "\n".join(f"{name:<10}{cell}" for name, cell in zip(COLUMNS, row, strict=True))
        )
        console.print()
    console.print(CAPTION)


def _cells(rank: int, reports: list[RankReport], verdict: Verdict) -> list[str]:
    report = reports[rank]
    good = verdict.errors[rank] <= verdict.tolerance
    return [
        str(rank),
        str(len(report.out)),
        str(sum(int(other.rows_from[rank]) for other in reports)),
        str(int(report.rows_from.sum())),
        *(f"{phase_ms(report, phase):.1f}" for phase in PHASES),
        f"[{'green' if good else 'red'}]{verdict.errors[rank]:.4f}[/]",
    ]


def _table(rows: list[list[str]]) -> Table:
    table = Table(
        title="One MoE layer, rank by rank", caption=CAPTION, box=box.SIMPLE_HEAD, pad_edge=False
    )
    for name in COLUMNS:
        table.add_column(name, justify="right", style="cyan" if name in PHASES else None)
    for row in rows:
        table.add_row(*row)
    return table


def write_report(
    path: Path, shape: Shape, reports: list[RankReport], verdict: Verdict, traffic: Traffic
) -> None:
    phases = {p: round(max(phase_ms(report, p) for report in reports), 3) for p in PHASES}
    content = {
        "ok": verdict.ok,
        "ranks": shape.ranks,
        "hosts": traffic.hosts,
        "rows_between_hosts": traffic.crossing.tolist(),
        "tokens": [len(report.out) for report in reports],
        "rows_received": [int(report.rows_from.sum()) for report in reports],
        "max_error": verdict.max_error,
        "tolerance": verdict.tolerance,
        "phases_ms": phases,
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_trace(path: Path, reports: list[RankReport]) -> None:
    """Writes a trace for ui.perfetto.dev in Chrome's format, with one process per rank."""
    start = min(span.begin_s for report in reports for span in report.spans)
    events: list[dict[str, Any]] = []
    for rank, report in enumerate(reports):
        name = {"name": f"rank {rank}"}
        events.append({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": name})
        events += (
            {
                "ph": "X",
                "name": span.phase,
                "cat": "layer",
                "pid": rank,
                "tid": 0,
                "ts": 1e6 * (span.begin_s - start),
                "dur": 1e6 * (span.end_s - span.begin_s),
                "args": {"step": span.step},
            }
            for span in report.spans
        )
    content = {"traceEvents": events, "displayTimeUnit": "ms"}
    path.write_text(json.dumps(content), encoding="utf-8")


def load_of(shape: Shape, reports: list[RankReport]) -> np.ndarray:
    """Returns [ranks, experts] the number of each rank's tokens that chose each expert."""
    counts = [np.bincount(r.chosen.ravel(), minlength=shape.experts) for r in reports]
    return np.stack(counts)
