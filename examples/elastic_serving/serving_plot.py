"""Plots the time of each step, and which experts answered on which rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")  # Before pyplot: it may run where there is no display.
import matplotlib.pyplot as plt

from .front import Run

INK, BLOW = "#22303c", "#b03a2e"


def plot_serving(path: Path, runs: dict[str, Run], ranks: int, experts: int) -> None:
    """Plots a column per run."""
    style: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context(style):
        figure, axes = plt.subplots(
            2,
            len(runs),
            figsize=(6 * len(runs), 6.5),
            dpi=130,
            layout="constrained",
            sharex="col",
            sharey="row",
            height_ratios=(1, 2),
            squeeze=False,
        )
        colors = plt.get_cmap("viridis")(np.linspace(0.05, 0.9, ranks))
        for column, (name, run) in enumerate(runs.items()):
            above, below = axes[0, column], axes[1, column]
            above.set_title(name)
            steps = sorted(run.seconds_of)
            above.semilogy(
                steps, [1e3 * run.seconds_of[step] for step in steps], color=INK, linewidth=0.8
            )
            for rank in range(ranks):
                points = [
                    (step, expert)
                    for step, rows in run.rows.items()
                    for (expert, by) in rows
                    if by == rank
                ]
                if points:
                    at, of = np.array(points).T
                    offset = (rank - (ranks - 1) / 2) * 0.6 / ranks
                    below.scatter(
                        at, of + offset, s=2, color=colors[rank], label=f"rank {rank}", linewidths=0
                    )
            for axis in (above, below):
                for step, what in ((run.killed_at, "killed"), (run.replaced_at, "replaced")):
                    if step is None:
                        continue
                    axis.axvline(step, color=BLOW, linewidth=0.8, linestyle="--")
                    if axis is above:
                        axis.annotate(f" {what}", (step, axis.get_ylim()[1]), color=BLOW, va="top")
            below.set_xlabel("decode step")
            below.set_yticks(range(experts))
        axes[0, 0].set_ylabel("slowest rank's step, ms")
        axes[1, 0].set_ylabel("expert that answered")
        axes[1, 0].set_ylim(-0.7, experts + 0.6)  # Room for the legend.
        axes[1, 0].legend(frameon=False, ncols=ranks, markerscale=4, loc="upper left")
        figure.suptitle("A rank is killed and replaced while requests keep coming")
        figure.savefig(path)
        plt.close(figure)
