"""Writes results of `./run bench throughput` to docs/choosing_sms.md, and plots the first file.

python bench/throughput_page.py bench/results/throughput{,_2_gpus_by_sms,_2_gpus}.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from peers.figure import Figure  # In this folder.

Row = dict[str, Any]

BEGIN, END = "<!-- measured: bench/throughput_page.py -->", "<!-- end of what was measured -->"
CASES = {
    "dispatch bf16 uncached": "dispatch BF16",
    "dispatch fp8 uncached": "dispatch FP8",
    "combine bf16, y in the arena": "combine",
    "combine bf16, ordinary y": "combine, ordinary tensors",
    "dispatch bf16 into expert-major": "dispatch into expert-major",
    "combine bf16 from expert-major": "combine from expert-major",
}
PLOTTED = list(CASES)[:3]
USUAL = {"tokens": 4096, "hidden": 7168, "sms": 16}
INTRODUCTION = (
    "Top-8 of 256 experts unless said otherwise. Medians, in us, of the whole device time of a "
    "call; in brackets what the bytes of the busiest rank take at 347 GB/s. Expert-major rows are "
    "padded to 128."
)
VARIED = (
    ("sms", "SMs", "4096 tokens a rank, hidden 7168, by multiprocessors:"),
    ("tokens", "tokens", "By tokens a rank, on 16 multiprocessors:"),
    ("hidden", "hidden", "By hidden size, 4096 tokens:"),
    ("remark", "", "By experts a token, and by how unequally experts are loaded:"),
)
LINES_OF_ONE = 3
"""Lines of a table with a single row, in which nothing varies."""


def main(paths: list[Path]) -> None:
    docs = Path(__file__).resolve().parents[1] / "docs"
    parts = [BEGIN, "", INTRODUCTION, ""]
    runs = [json.loads(path.read_text()) for path in paths]
    for path, measured in zip(paths, runs, strict=True):
        rows = [split(row) for row in measured["rows"]]
        parts += tables(path.name, measured["environment"], rows)
    plot([split(row) for row in runs[0]["rows"]], docs / "choosing_sms.svg")
    parts += ["![](choosing_sms.svg)", ""]
    page = docs / "choosing_sms.md"
    text = page.read_text()
    before, after = text.index(BEGIN), text.index(END)
    page.write_text(text[:before] + "\n".join(parts) + text[after:])


def tables(name: str, facts: dict[str, Any], rows: list[Row]) -> list[str]:
    """Returns the tables of one run, one for each thing that varies in it."""
    parts = [
        f"## {facts['gpus']} GPUs, commit {facts['commit']}",
        "",
        f"{name}: {facts['gpu']}, driver {facts['driver']}, CUDA {facts['cuda']}, {facts['date']}.",
        "",
    ]
    for varied, title, what in VARIED:
        lines = table(rows, varied, title)
        if len(lines) > LINES_OF_ONE:
            parts += [what, "", *lines, ""]
    return parts


def split(row: Row) -> Row:
    """Splits "combine bf16, y in the arena, top-4" into the case and its unusual tokens."""
    case = next(case for case in CASES if row["case"].startswith(case)) if known(row) else ""
    return row | {"case": case, "remark": row["case"][len(case) :].lstrip(", ") or "top-8"}


def known(row: Row) -> bool:
    return any(row["case"].startswith(case) for case in CASES)


def table(rows: list[Row], varied: str, title: str) -> list[str]:
    """Returns a table with one line per value of what varies, all else as usual."""
    usual = {**USUAL, "remark": "top-8"}
    of_table = [
        row
        for row in rows
        if row["case"] and all(row[key] == usual[key] for key in usual if key != varied)
    ]
    values = sorted({row[varied] for row in of_table})
    lines = [f"| {title} | " + " | ".join(CASES.values()) + " |", "|---" * (len(CASES) + 1) + "|"]
    for value in values:
        cells = {row["case"]: row for row in of_table if row[varied] == value}
        lines.append(f"| {value} | " + " | ".join(cell(cells.get(case)) for case in CASES) + " |")
    return lines


def cell(row: Row | None) -> str:
    return f"{row['ours']['median']:.0f} ({row['floor']:.0f})" if row else ""


def plot(rows: list[Row], path: Path) -> None:
    """Plots time over multiprocessors, with the time of the link as a dotted line."""
    lines = {
        case: sorted(
            (row["sms"], row["ours"]["median"], row["floor"])
            for row in rows
            if row["case"] == case
            and row["remark"] == "top-8"
            and all(row[key] == USUAL[key] for key in ("tokens", "hidden"))
        )
        for case in PLOTTED
    }
    points = [point for line in lines.values() for point in line]
    sms = sorted({point[0] for point in points})
    figure = Figure((0, sms[-1] * 1.05), max(max(point[1:]) for point in points))
    figure.axes([(count, str(count)) for count in sms], "multiprocessors", "us (dotted: the wire)")
    for case, line in lines.items():
        figure.line([point[:2] for point in line], CASES[case])
        figure.dotted((line[0][0], line[-1][0]), line[0][2], CASES[case])
    figure.save(path)


if __name__ == "__main__":
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("results", type=Path, nargs="+", help="files of bench/results")
    main(command.parse_args().results)
