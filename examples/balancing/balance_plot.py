"""Plots a run: imbalance step by step, and the rows of each rank at the worst step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")  # Before pyplot: it may run where there is no display.
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

INK = "#22303c"
STAYING, MOVING = "#f2a93b", "#2a7fb8"


def plot_balance(
    path: Path, staying: np.ndarray, moving: np.ndarray, changes: list[int], title: str
) -> None:
    """Plots both layers.

    Args:
        staying, moving: [ranks, steps, experts] rows.
        changes: steps that begin with a new map.
    """
    style: dict[Any, Any] = {
        "font.size": 9,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with plt.rc_context(style):
        figure = plt.figure(figsize=(11, 7.5), dpi=130, layout="constrained")
        grid = figure.add_gridspec(2, 2)
        above = figure.add_subplot(grid[0, :])
        ratios = [imbalance(rows) for rows in (staying, moving)]
        for at, change in enumerate(changes):
            label = "new map" if at == 0 else None
            above.axvline(change, color="#c9d1d8", linewidth=1, zorder=0, label=label)
        above.plot(ratios[0], color=STAYING, linewidth=2, label="experts stay")
        above.plot(ratios[1], color=MOVING, linewidth=2, label="experts move")
        above.axhline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        above.set_xlim(0, len(ratios[0]) - 1)
        above.set_ylim(bottom=0.9)
        above.set_xlabel("step")
        above.set_ylabel("rows of the fullest rank / mean")
        above.legend(frameon=False, ncols=3, loc="upper right")
        worst = int(ratios[0].argmax())
        left, right = figure.add_subplot(grid[1, 0]), figure.add_subplot(grid[1, 1])
        _rows(left, staying[:, worst], f"step {worst}, experts stay")
        _rows(right, moving[:, worst], f"step {worst}, experts move")
        right.sharey(left)
        figure.suptitle(title, fontsize=13, fontweight="bold")
        figure.savefig(path)
        plt.close(figure)


def imbalance(rows: np.ndarray) -> np.ndarray:
    """Returns [steps] the rows of the fullest rank over the mean."""
    of_ranks = rows.sum(2)
    ratios: np.ndarray = of_ranks.max(0) / np.maximum(of_ranks.mean(0), 1e-9)
    return ratios


def _rows(axes: Axes, rows: np.ndarray, title: str) -> None:
    """Plots a bar per rank, stacked by expert, with the experts' numbers where there is room."""
    base = np.zeros(len(rows))
    colours = plt.get_cmap("viridis")(np.linspace(0.1, 0.95, rows.shape[1]))
    for expert, colour in enumerate(colours):
        part = rows[:, expert]
        axes.bar(np.arange(len(rows)), part, bottom=base, color=colour, width=0.8)
        for rank in np.flatnonzero(part > 0.06 * rows.sum(1).max()).tolist():
            axes.text(
                rank,
                base[rank] + part[rank] / 2,
                str(expert),
                ha="center",
                va="center",
                fontsize=7,
                color="white" if expert < 0.6 * rows.shape[1] else INK,
            )
        base += part
    axes.axhline(rows.sum() / len(rows), color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xticks(range(len(rows)), [f"rank {rank}" for rank in range(len(rows))])
    axes.set_ylabel("rows, by expert")
    axes.set_title(title, fontsize=10)
