"""Plots the losses of a training with killed ranks beside those of an undisturbed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")  # Before pyplot: it may run where there is no display.
import matplotlib.pyplot as plt

from .supervisor import Run

INK = "#22303c"


def plot_losses(path: Path, calm: Run, struck: Run) -> None:
    """Plots both curves, which should coincide, and their difference at every step."""
    style: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context(style):
        figure, (above, below) = plt.subplots(
            2, 1, figsize=(10, 6), dpi=130, layout="constrained", sharex=True, height_ratios=(4, 1)
        )
        steps = np.arange(1, len(calm.losses) + 1)
        above.plot(steps, calm.losses, color="#f2a93b", linewidth=5, label="nobody dies")
        above.plot(steps, struck.losses, color="#2a7fb8", linewidth=1.2, label="ranks are killed")
        for step, ranks, seconds in struck.kills:
            above.axvline(step, color="#b03a2e", linewidth=0.8, linestyle="--")
            who = f"rank{'s' if len(ranks) > 1 else ''} {' and '.join(map(str, ranks))}"
            above.annotate(
                f"{who}: {seconds:.1f} s ",
                (step, above.get_ylim()[1]),
                rotation=90,
                va="top",
                ha="right",
                fontsize=8,
                color="#b03a2e",
            )
        above.set_ylabel("loss, nats a letter")
        above.legend(frameon=False)
        below.plot(steps, np.subtract(struck.losses, calm.losses), color=INK, linewidth=1.2)
        below.set_ylabel("difference")
        below.set_xlabel("step")
        figure.suptitle("Ranks are killed and replaced; the training does not notice")
        figure.savefig(path)
        plt.close(figure)
