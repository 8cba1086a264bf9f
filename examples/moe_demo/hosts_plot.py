"""Plots the traffic by host: rows between hosts, and what one copy per host saves."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")  # Before pyplot: a demo may run where there is no display.
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from .traffic import Traffic

INK, ONCE, PER_RANK = "#22303c", "#2a7fb8", "#d5dde4"
PAIRS_NAMED = 12
"""Largest number of pairs of hosts whose bars have names."""


def plot_hosts(path: Path, traffic: Traffic) -> None:
    with plt.rc_context({"font.size": 9, "text.color": INK, "axes.labelcolor": INK}):
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(13, 5), dpi=130, layout="constrained", width_ratios=(1, 1.3)
        )
        _rows(left, traffic)
        _savings(right, traffic)
        figure.suptitle(
            f"{traffic.far} rows between {traffic.hosts} hosts, and as many results back",
            fontsize=14,
            fontweight="bold",
        )
        figure.savefig(path)
        plt.close(figure)


def _name(traffic: Traffic, host: int) -> str:
    ranks = traffic.ranks_of[host]
    span = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
    return f"host {host}\n({span})"


def _rows(axes: Axes, traffic: Traffic) -> None:
    """Plots rows from each host to each; those within a host, which no network sees, are pale."""
    rows = traffic.crossing
    within = np.eye(traffic.hosts, dtype=bool)
    shown = np.ma.masked_array(rows, within)
    image = axes.imshow(shown, cmap="YlGnBu", vmin=0, vmax=1.2 * max(1, shown.max()))
    for (source, target), value in np.ndenumerate(rows):
        near = within[source, target]
        text = f"{value}\nwithin the host" if near else f"{value}"
        counted = traffic.network_bytes[source, target]
        if counted:
            text += f"\n{counted / 1e6:.2f} MB sent"
        dark = not near and value > 0.6 * shown.max()
        colour = "#7c8894" if near else "white" if dark else INK
        if traffic.hosts <= PAIRS_NAMED:
            axes.text(target, source, text, ha="center", va="center", color=colour, fontsize=8)
    names = [_name(traffic, host) for host in range(traffic.hosts)]
    axes.set_xticks(range(traffic.hosts), names)
    axes.set_yticks(range(traffic.hosts), names)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("to host")
    axes.set_ylabel("from host")
    axes.set_title("rows, once per host that holds experts of the word", fontsize=10)
    axes.figure.colorbar(image, ax=axes, shrink=0.8).outline.set_visible(False)


def _savings(axes: Axes, traffic: Traffic) -> None:
    pairs = [
        (source, target)
        for source in range(traffic.hosts)
        for target in range(traffic.hosts)
        if source != target
    ]
    places = np.arange(len(pairs))
    megabytes = traffic.row_bytes / 1e6
    for rows, colour, width, label in (
        (traffic.by_rank, PER_RANK, 0.8, "if each rank got its own row"),
        (traffic.crossing, ONCE, 0.5, "once per host, as sent"),
    ):
        sizes = [rows[pair] * megabytes for pair in pairs]
        bars = axes.bar(places, sizes, color=colour, width=width, label=label)
        if len(pairs) <= PAIRS_NAMED:
            axes.bar_label(bars, fmt="%.3g", fontsize=8)
    if len(pairs) <= PAIRS_NAMED:
        axes.set_xticks(places, [f"{source} → {target}" for source, target in pairs])
    axes.set_xlabel("from host → to host")
    axes.set_ylabel("MB of rows in all dispatches")
    axes.set_title("what one copy per host saves", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.15)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
