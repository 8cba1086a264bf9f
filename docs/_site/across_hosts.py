"""Writes the tables and the plot of docs/across_hosts.md from bench/results.

Called by performance.py. The goals of a row follow from its case and shape.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from peers.figure import Figure  # noqa: E402

RESULTS = ROOT / "bench/results"
PAGE, PLOT = ROOT / "docs/across_hosts.md", ROOT / "docs/across_hosts.svg"
BEGIN, END = "<!-- modelled: docs/_site/across_hosts.py -->", "<!-- end of what was modelled -->"
LATENCY_US = 3

Row = dict[str, Any]

SHARES = {16: (0.90, 0.88), 32: (0.96, 0.96), 48: (0.96, 0.96), 64: (0.97, 0.97), 96: (0.97, 0.97)}
"""Goals of 4096 tokens and more, by ranks: the share of the link in BF16 and in FP8."""


def goal_us(row: Row) -> float | None:
    """Returns the time that a call may take; None where it is only reported."""
    case, ranks, tokens, floor = row["case"], row["ranks"], row["tokens"], row["floor"]
    if case.startswith("low latency"):
        return 1.15 * (floor + LATENCY_US)
    if not case.endswith(" model"):
        return None  # Other routings and a slow rail.
    if tokens >= 4096:
        shares = SHARES.get(ranks)
        return floor / shares["fp8" in case] if shares else None
    if ranks < 32:
        return floor + 55 if tokens == 1024 and ranks == 16 else None
    if tokens == 128:
        return floor + 35
    return floor + 50 if 512 <= tokens <= 2048 else None


def table(rows: list[Row]) -> list[str]:
    lines = [
        "| Case, us | Ranks | Tokens | SMs | Tokenyard | Bytes alone | Of the link | Over | Goal |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        us, floor = row["ours"]["median"], row["floor"]
        goal = goal_us(row)
        words = f"{goal:.0f}: {'met' if us <= goal else 'missed'}" if goal is not None else "-"
        commit = f", commit {row['commit']}" if row.get("commit") else ""
        lines.append(
            f"| {row['case'].replace(' model', '')} | {row['ranks']} | {row['tokens']} "
            f"| {row['sms']} | {us:.1f}{commit} | {floor:.1f} | {100 * floor / us:.1f} % "
            f"| {us - floor:.1f} | {words} |"
        )
    return lines


def peer_table(rows: list[Row]) -> list[str]:
    lines = [
        "| Case, us | Ranks | Modelled | Published | Modelled over published | Bytes alone |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        us, published = row["peer"]["median"], row.get("published")
        cells = [f"{published:.0f}", f"{us / published:.2f}"] if published else ["-", "-"]
        case = row["case"].partition(" model")[0]
        lines.append(
            f"| {case} | {row['ranks']} | {us:.0f} | {' | '.join(cells)} | {row['floor']:.0f} |"
        )
    return lines


def rows_of(name: str) -> list[Row]:
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []


def order(row: Row) -> tuple[bool, int, int, str]:
    low_latency = row["case"].startswith("low latency")
    return low_latency, row["ranks"], row["tokens"], row["case"]


def part() -> str:
    """Returns the generated part of the page."""
    ours = sorted(rows_of("across_hosts.json"), key=order)
    throughput = [row for row in ours if not row["case"].startswith("low latency")]
    low_latency = [row for row in ours if row["case"].startswith("low latency")]
    lines = [BEGIN, "", *table(throughput), ""]
    lines += ["![Share of the link, by call](across_hosts.svg)", ""]
    if low_latency:
        lines += ["Low latency:", "", *table(low_latency), ""]
    peers = rows_of("across_hosts_deep_ep_v1.json")
    if peers:
        lines += ["The protocol of DeepEP V1, 4096 tokens, 24 multiprocessors:", ""]
        lines += [*peer_table(peers), ""]
    return "\n".join([*lines, END])


def plot(path: Path) -> None:
    """Draws the share of the link that each call reaches."""
    rows = sorted(rows_of("across_hosts.json"), key=order)
    figure = Figure((0, len(rows)), 100, width=max(760, 44 * len(rows) + 80), height=340)
    ticks = [(place + 0.5, f"{row['ranks']}/{row['tokens']}") for place, row in enumerate(rows)]
    figure.axes(ticks, "ranks / tokens per rank", "% of the link")
    for place, row in enumerate(rows):
        share = round(100 * row["floor"] / row["ours"]["median"], 1)
        figure.bar(place + 0.15, 0.7, share, row["case"].replace(" model", ""))
    figure.save(path)


def write() -> None:
    """Writes the page and its plot."""
    PAGE.write_text(page(), encoding="utf-8")
    plot(PLOT)


def is_current() -> bool:
    """Returns whether the page and its plot are what the results say."""
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / PLOT.name
        plot(drawn)
        same = PLOT.read_text(encoding="utf-8") == drawn.read_text(encoding="utf-8")
    return same and PAGE.read_text(encoding="utf-8") == page()


def page() -> str:
    """Returns the page with its generated part."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.index(BEGIN), text.index(END) + len(END)
    return text[:before] + part() + text[after:]
