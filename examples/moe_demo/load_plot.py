"""Plots a run: words per expert and sender, typical words, traffic between ranks, a timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")  # Before pyplot: a demo may run where there is no display.
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from .layer import Shape
from .rank import RankReport
from .report import PHASES, load_of
from .text import Text

INK = "#22303c"
PHASE_COLOURS = dict(zip(PHASES, ("#8d99a6", "#2a7fb8", "#f2a93b", "#3d9a6b"), strict=True))
WORDS_AN_EXPERT = 4
LETTERS_SHOWN = 12
EXPERTS_NAMED = 40
"""Largest number of experts whose words are legible."""


def plot_load(path: Path, shape: Shape, text: Text, reports: list[RankReport]) -> None:
    style: dict[Any, Any] = {
        "font.size": 9,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": "#b8c2cc",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with plt.rc_context(style):
        figure = plt.figure(figsize=(13, 8.4), dpi=130, layout="constrained")
        grid = figure.add_gridspec(2, 3, height_ratios=(1.25, 1))
        _bars(figure.add_subplot(grid[0, :]), shape, text, reports)
        _traffic(figure.add_subplot(grid[1, 0]), shape, reports)
        _timeline(figure.add_subplot(grid[1, 1:]), reports)
        figure.suptitle(
            f"Where {shape.ranks * shape.tokens} words of {text.name} went: top-{shape.topk} of "
            f"{shape.experts} experts on {shape.ranks} rank{'s' if shape.ranks > 1 else ''}",
            fontsize=14,
            fontweight="bold",
        )
        figure.savefig(path)
        plt.close(figure)


def _rank_colours(ranks: int) -> np.ndarray:
    return plt.get_cmap("viridis")(np.linspace(0.12, 0.92, ranks))


def _bars(axes: Axes, shape: Shape, text: Text, reports: list[RankReport]) -> None:
    """Plots a bar per expert, stacked by sender; experts are grouped by their rank."""
    load = load_of(shape, reports)
    base = np.zeros(shape.experts)
    places = np.arange(shape.experts)
    for rank, colour in enumerate(_rank_colours(shape.ranks)):
        axes.bar(places, load[rank], bottom=base, color=colour, width=0.8, label=f"rank {rank}")
        base += load[rank]
    even = load.sum() / shape.experts
    axes.axhline(even, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.text(shape.experts - 0.42, even, f"even: {even:.0f}", va="center", fontsize=8)
    top = base.max() * 1.16
    for rank in range(shape.ranks):
        first = rank * shape.experts_per_rank - 0.5
        if rank % 2:
            axes.axvspan(first, first + shape.experts_per_rank, color="#eef2f5", zorder=-1)
        axes.text(
            first + shape.experts_per_rank / 2,
            top * 0.965,
            f"held by rank {rank}",
            ha="center",
            va="top",
            fontweight="bold",
        )
    axes.set_ylim(0, top)
    axes.set_xlim(-0.5, shape.experts - 0.5)
    axes.set_ylabel("words sent to the expert")
    if shape.experts <= EXPERTS_NAMED:
        favourites = _favourites(shape, text, reports)
        labels = [f"{e}\n" + "\n".join(favourites[e]) for e in range(shape.experts)]
        axes.set_xticks(places, labels, fontsize=7.5 if shape.experts <= 20 else 6)
        axes.set_xlabel("expert, and the words that chose it more often than chance would have it")
    else:
        axes.set_xlabel("expert")
    if shape.ranks <= 16:
        axes.legend(
            title="sent by", reverse=True, frameon=False, loc="upper left", bbox_to_anchor=(1, 1)
        )


def _favourites(shape: Shape, text: Text, reports: list[RankReport]) -> list[list[str]]:
    """Returns for each expert the words that chose it most above chance."""
    counts = np.zeros((shape.experts, len(text.words)))
    for tokens, report in zip(text.tokens, reports, strict=True):
        for choice in report.chosen.T:
            np.add.at(counts, (choice, tokens), 1)
    expected = counts.sum(1, keepdims=True) * counts.sum(0, keepdims=True) / counts.sum()
    surprise = (counts - expected) / np.sqrt(np.maximum(expected, 1e-9))
    surprise[counts < 2] = -1
    best = np.argsort(-surprise, axis=1, kind="stable")[:, :WORDS_AN_EXPERT]
    return [
        [_shown(text.words[word]) for word in row if surprise[expert, word] > 0]
        for expert, row in enumerate(best)
    ]


def _shown(word: str) -> str:
    """Returns a label: punctuation in quotes, to be visible, and long words shortened."""
    if not word[0].isalnum():
        return f"“{word}”"
    return word if len(word) <= LETTERS_SHOWN else word[: LETTERS_SHOWN - 1] + "…"


def _traffic(axes: Axes, shape: Shape, reports: list[RankReport]) -> None:
    rows = np.stack([report.rows_from for report in reports], axis=1)
    image = axes.imshow(rows, cmap="YlGnBu", vmin=0.75 * rows.min(), vmax=1.05 * rows.max())
    if shape.ranks <= 16:
        for (source, target), value in np.ndenumerate(rows):
            dark = value > 0.45 * rows.min() + 0.5 * rows.max()
            axes.text(
                target,
                source,
                str(value),
                ha="center",
                va="center",
                color="white" if dark else INK,
                fontsize=9 if shape.ranks <= 8 else 6,
            )
        axes.set_xticks(range(shape.ranks))
        axes.set_yticks(range(shape.ranks))
    axes.spines[:].set_visible(False)
    axes.set_xlabel("to rank")
    axes.set_ylabel("from rank")
    axes.set_title("rows over the wire (and to oneself)", fontsize=10)
    axes.figure.colorbar(image, ax=axes, shrink=0.8).outline.set_visible(False)


def _timeline(axes: Axes, reports: list[RankReport]) -> None:
    start = min(span.begin_s for report in reports for span in report.spans)
    for rank, report in enumerate(reports):
        for phase, colour in PHASE_COLOURS.items():
            spans = [
                (1e3 * (span.begin_s - start), 1e3 * (span.end_s - span.begin_s))
                for span in report.spans
                if span.phase == phase
            ]
            axes.broken_barh(spans, (rank - 0.38, 0.76), facecolors=colour, linewidth=0)
    axes.set_yticks(range(len(reports)), [f"rank {rank}" for rank in range(len(reports))])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds since the first gate")
    axes.set_title("who did what, when", fontsize=10)
    patches = [Patch(color=colour, label=phase) for phase, colour in PHASE_COLOURS.items()]
    axes.legend(
        handles=patches, ncols=4, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16)
    )
