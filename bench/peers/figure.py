"""Draws a small plot as SVG: lines or bars over one axis, with a legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd")
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 34, 44
TICKS = 6


class Figure:
    """Collects shapes in data coordinates; y begins at 0. The same data make the same file."""

    def __init__(self, x: tuple[float, float], y_max: float, width: int = 640, height: int = 300):
        self.x, self.width, self.height = x, width, height
        self.step = step_of(y_max)
        self.y_max = math.ceil(y_max / self.step) * self.step
        self.shapes: list[str] = []
        self.labels: list[tuple[str, str]] = []  # Each with its color.

    def across(self, x: float) -> float:
        """Returns the column of `x`, in pixels."""
        low, high = self.x
        return round(LEFT + (x - low) / (high - low) * (self.width - LEFT - RIGHT), 1)

    def up(self, y: float) -> float:
        """Returns the row of `y`, in pixels."""
        return round(self.height - BOTTOM - y / self.y_max * (self.height - TOP - BOTTOM), 1)

    def axes(self, ticks: Sequence[tuple[float, str]], x_title: str, y_title: str) -> None:
        """Draws both axes; `ticks` are places on the x axis and their words."""
        left, right, floor = LEFT, self.width - RIGHT, self.up(0)
        frame = f"M{left} {TOP}V{floor}H{right}"
        for x, words in ticks:
            frame += f"M{self.across(x)} {floor}v4"
            self.text(self.across(x), floor + 17, words)
        for tick in range(round(self.y_max / self.step) + 1):
            frame += f"M{left} {self.up(tick * self.step)}h-4"
            self.text(left - 7, self.up(tick * self.step) + 4, f"{tick * self.step:g}", "end")
        self.shapes.append(f'<path fill="none" d="{frame}" stroke="#000"/>')
        self.text((left + right) / 2, self.height - 8, x_title)
        self.text(
            14, (TOP + floor) / 2, y_title, more=f' transform="rotate(-90 14 {(TOP + floor) / 2})"'
        )

    def line(self, points: Sequence[tuple[float, float]], label: str) -> None:
        """Draws a line with a dot at each point."""
        color = self.color(label)
        places = [(self.across(x), self.up(y)) for x, y in points]
        path = "L".join(f"{x} {y}" for x, y in places)
        self.shapes.append(f'<path fill="none" d="M{path}" stroke="{color}" stroke-width="2"/>')
        self.shapes += [f'<circle cx="{x}" cy="{y}" r="3" fill="{color}"/>' for x, y in places]

    def bar(self, x: float, width: float, y: float, label: str) -> None:
        """Draws a bar from `x` on, with its height above it."""
        color = self.color(label)
        left, right, top = self.across(x), self.across(x + width), self.up(y)
        size = f'width="{right - left:.1f}" height="{self.up(0) - top:.1f}"'
        self.shapes.append(f'<rect x="{left}" y="{top}" {size} fill="{color}"/>')
        self.text((left + right) / 2, top - 3, f"{y:.0f}", more=' font-size="10"')

    def dotted(self, x: tuple[float, float], y: float, label: str | None = None) -> None:
        """Draws a dotted level, in the color of `label` or black."""
        color = self.color(label) if label else "#000"
        path = f"M{self.across(x[0])} {self.up(y)}H{self.across(x[1])}"
        self.shapes.append(
            f'<path fill="none" d="{path}" stroke="{color}" stroke-dasharray="2 3"/>'
        )

    def color(self, label: str) -> str:
        """Returns the color of a label, which enters the legend at its first use."""
        colors = dict(self.labels)
        if label not in colors:
            colors[label] = COLORS[len(colors) % len(COLORS)]
            self.labels.append((label, colors[label]))
        return colors[label]

    def text(self, x: float, y: float, words: str, anchor: str = "", more: str = "") -> None:
        if anchor:
            more += f' text-anchor="{anchor}"'
        self.shapes.append(f'<text x="{x:g}" y="{y:g}"{more}>{escape(words)}</text>')

    def save(self, path: Path) -> None:
        """Writes the file, the legend above the plot."""
        for place, (label, color) in enumerate(self.labels):
            x = LEFT + place * (self.width - LEFT - RIGHT) / len(self.labels)
            self.shapes.append(f'<rect x="{x:g}" y="8" width="12" height="12" fill="{color}"/>')
            self.text(x + 18, 18, label, "start")
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}"'
            f' width="{self.width}" height="{self.height}">'
        )
        ground = f'<rect width="{self.width}" height="{self.height}" fill="#fff"/>'
        group = '<g font-family="sans-serif" font-size="12" text-anchor="middle">'
        path.write_text("\n".join([head, ground, group, *self.shapes, "</g></svg>\n"]))


def step_of(y_max: float) -> float:
    """Returns a round distance between ticks, for at most `TICKS` of them."""
    least = y_max / TICKS
    size = 10 ** math.floor(math.log10(least))
    return next(
        size * round_number for round_number in (1, 2, 2.5, 5, 10) if size * round_number >= least
    )
