"""Runs the example: both layers on their ranks, a table, a plot and a report."""

from __future__ import annotations

import argparse
import json

import numpy as np
from moe_demo.ticks import Ticks
from rich import box
from rich.console import Console
from rich.table import Table

import tokenyard

from .balance_plot import imbalance, plot_balance
from .layer import Shape
from .rank import run_rank

TOLERANCE = 0.1
"""Largest error of a result, whose addends are bfloat16 numbers of about 1."""


def run(chosen: argparse.Namespace) -> int:
    """Runs the example as its arguments say; returns the exit status."""
    console = Console()
    shape = Shape(
        ranks=chosen.ranks,
        experts=chosen.experts,
        places=chosen.experts + chosen.spare,
        topk=chosen.top_k,
        tokens=chosen.tokens,
        steps=chosen.steps,
        every=chosen.every,
        seed=chosen.seed,
    )
    with Ticks(console) as ticks:
        tick = ticks.task("both layers", shape.ranks * shape.steps)
        reports = tokenyard.launch(run_rank, ranks=shape.ranks, args=(shape, tick))
    staying = np.array([report.staying for report in reports])
    moving = np.array([report.moving for report in reports])
    # The first map is that of both layers.
    before, after = imbalance(staying)[shape.every :], imbalance(moving)[shape.every :]
    error = max(report.error for report in reports)
    moved = sum(report.moved for report in reports)
    changes = [step for step in reports[0].maps if step > 0]
    console.print(_table(before, after))
    replicas = np.bincount([e for e in reports[0].maps[changes[-1]] if e >= 0])
    console.print(
        f"{len(changes)} new maps have moved the weights of {moved} experts. In the last map, "
        f"{int((replicas > 1).sum())} experts have several places, at most {replicas.max()}.",
        highlight=False,
    )
    right, better = error <= TOLERANCE, float(after.mean()) < float(before.mean())
    plot_balance(
        chosen.out / "balance.png",
        staying,
        moving,
        changes,
        f"{shape.experts} experts at {shape.places} places of {shape.ranks} ranks, "
        f"a new map every {shape.every} steps",
    )
    report = dict(
        imbalance_staying=[round(float(each), 4) for each in before],
        imbalance_moving=[round(float(each), 4) for each in after],
        maps={str(step): places for step, places in reports[0].maps.items()},
        experts_moved=moved,
        max_error=error,
        tolerance=TOLERANCE,
        ok=right and better,
    )
    path = chosen.out / "report.json"
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    console.print(
        f"{'[green]Right' if right else '[red]Wrong'}[/]: the largest error is {error:.4f}; "
        f"{TOLERANCE} is allowed.",
        highlight=False,
    )
    if not better:
        console.print("[red]Not better[/]: the experts that moved are balanced no better.")
    console.print(f"See {chosen.out}/balance.png and report.json.", highlight=False)
    return 0 if right and better else 1


def _table(before: np.ndarray, after: np.ndarray) -> Table:
    table = Table(
        title="Rows of the fullest rank / mean", box=box.SIMPLE_HEAD, pad_edge=False, min_width=36
    )
    for name in ("experts", "mean", "worst"):
        table.add_column(name, justify="left" if name == "experts" else "right")
    for name, ratios in (("stay", before), ("move", after)):
        table.add_row(name, f"{ratios.mean():.2f}", f"{ratios.max():.2f}")
    return table
