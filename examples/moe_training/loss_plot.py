"""Plots the losses of a training, and their difference from those of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")  # Before pyplot: it may run where there is no display.
import matplotlib.pyplot as plt


def plot_losses(path: Path, losses: list[float], alone: list[float], ranks: int) -> None:
    """Plots both curves, and their relative difference at every step that both have."""
    style: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context(style):
        figure, (above, below) = plt.subplots(
            2, 1, figsize=(10, 6), dpi=130, layout="constrained", sharex=True, height_ratios=(4, 1)
        )
        above.plot(
            np.arange(1, len(alone) + 1), alone, color="#f2a93b", linewidth=5, label="1 rank"
        )
        above.plot(
            np.arange(1, len(losses) + 1),
            losses,
            color="#2a7fb8",
            linewidth=1.2,
            label=f"{ranks} ranks",
        )
        above.set_ylabel("loss, nats a byte")
        above.legend(frameon=False)
        apart = np.abs(np.subtract(losses[: len(alone)], alone)) / np.array(alone)
        below.semilogy(np.arange(1, len(alone) + 1), np.maximum(apart, 1e-9), color="#22303c")
        below.set_ylabel("apart")
        below.set_xlabel("step")
        figure.suptitle("A mixture of experts, its experts spread over the ranks")
        figure.savefig(path)
        plt.close(figure)
