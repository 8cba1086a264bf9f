"""Makes docs/against_deep_ep.md and its plots from the results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from figure import Figure

BEGIN, END = "<!-- measured: bench/peers --page -->", "<!-- end of what was measured -->"
PLOTTED = ("dispatch bf16", "dispatch fp8", "combine bf16", "combine bf16, ordinary y")

Row = dict[str, Any]


def write_page(results: Path, docs: Path) -> None:
    """Writes tables between the page's two marks, and a plot of the run with the most GPUs."""
    parts = [BEGIN, ""]
    for name, section in (("throughput", throughput_of), ("low_latency", low_latency_of)):
        paths = results.glob(f"{name}_peers_*_gpus.json")
        runs = [json.loads(path.read_text()) for path in paths]
        runs.sort(key=lambda measured: -int(measured["environment"]["gpus"]))
        for measured in runs:
            parts += section(measured["environment"], measured["rows"])
            if name == "throughput" and measured is runs[0]:
                plot(measured["rows"], docs / "against_deep_ep.svg")
                parts += ["![](against_deep_ep.svg)", ""]
        if not runs:
            parts += [f"bench/results has no {name}_peers: not measured.", ""]
    page = docs / "against_deep_ep.md"
    text = page.read_text()
    before, after = text.index(BEGIN), text.index(END)
    page.write_text(text[:before] + "\n".join([*parts, ""]) + text[after:])


def throughput_of(facts: dict[str, Any], rows: list[Row]) -> list[str]:
    shape = rows[0]
    parts = [
        f"## Throughput, {facts['gpus']} GPUs",
        "",
        f"{shape['tokens']} tokens a rank, hidden {shape['hidden']}, top-8 of 256 experts. "
        f"{machine(facts)} Kernels: the time that the kernels of a call take on the device, added "
        "up. Call: from before it to after it, with whatever the device waits for its host.",
        "",
    ]
    for peer in dict.fromkeys(row["peer"]["name"] for row in rows):
        of_peer = [row for row in rows if row["peer"]["name"] == peer]
        parts += measured_before(facts, of_peer)
        parts += [
            f"| us, kernels (call) | SMs | Tokenyard | {peer} | ratio | wire |",
            "|---|---|---|---|---|---|",
        ]
        parts += [
            f"| {row['case']} | {row['sms']} | {both(row['ours'], row['ours_call'])} "
            f"| {both(row['peer'], row['peer_call'])} | {ratio(row)} | {row['floor']:.0f} |"
            for row in of_peer
        ]
        parts.append("")
    return parts


def low_latency_of(facts: dict[str, Any], rows: list[Row]) -> list[str]:
    parts = [
        f"## Low latency, {facts['gpus']} GPUs",
        "",
        f"Hidden {rows[0]['hidden']}, top-8 of 288 experts, FP8 out and BF16 back, buffers for 128 "
        f"tokens a rank. {machine(facts)} In the mean over trains of 20 pairs, by the profiler; "
        '"per pair" between events. Of a call with hooks, its two kernels.',
        "",
    ]
    for peer in dict.fromkeys(row["peer"]["name"] for row in rows):
        of_peer = [row for row in rows if row["peer"]["name"] == peer]
        parts += measured_before(facts, of_peer)
        parts += [
            f"| us | tokens | Tokenyard | {peer} | ratio | wire |",
            "|---|---|---|---|---|---|",
        ]
        parts += [
            f"| {row['case']} | {row['tokens']} | {row['ours']['median']:.1f} "
            f"| {row['peer']['median']:.1f} | {ratio(row)} "
            f"| {'' if row['floor'] is None else format(row['floor'], '.1f')} |"
            for row in of_peer
        ]
        parts.append("")
    return parts


def measured_before(facts: dict[str, Any], rows: list[Row]) -> list[str]:
    """Returns a note about rows that were measured at another commit than the others."""
    commits = {row.get("commit", facts["commit"]) for row in rows} - {facts["commit"]}
    return [f"At commit {', '.join(sorted(commits))}:", ""] if commits else []


def machine(facts: dict[str, Any]) -> str:
    return (
        f"{facts['gpus']} x {facts['gpu']}, driver {facts['driver']}, CUDA {facts['cuda']}, "
        f"commit {facts['commit']}, {facts['date']}; medians."
    )


def both(kernels: Row, call: Row) -> str:
    return f"{kernels['median']:.0f} ({call['median']:.0f})"


def ratio(row: Row) -> str:
    return f"{row['peer']['median'] / row['ours']['median']:.2f}"


def plot(rows: list[Row], path: Path) -> None:
    """Draws the kernels' times as bars, grouped by case, on the smallest number of SMs."""
    fewest = min(row["sms"] for row in rows)
    chosen = [row for row in rows if row["sms"] == fewest and row["case"] in PLOTTED]
    contenders = ["Tokenyard", *dict.fromkeys(row["peer"]["name"] for row in chosen)]
    heights = {who: [height(chosen, case, who) for case in PLOTTED] for who in contenders}
    tallest = max(max(of_one) for of_one in heights.values())
    figure = Figure((0, len(PLOTTED)), tallest, width=800)
    middles = [(group + 0.5, case) for group, case in enumerate(PLOTTED)]
    figure.axes(middles, "", f"us, {fewest} SMs (dotted: the wire)")
    width = 0.8 / len(contenders)
    for place, contender in enumerate(contenders):
        for group, tall in enumerate(heights[contender]):
            figure.bar(group + 0.1 + place * width, width * 0.95, tall, contender)
    for group, case in enumerate(PLOTTED):
        floors = [row["floor"] for row in chosen if row["case"] == case]
        if floors:
            figure.dotted((group + 0.1, group + 0.9), floors[0])
    figure.save(path)


def height(rows: list[Row], case: str, contender: str) -> float:
    """Returns the median of our medians, since ours is measured beside every peer."""
    of_case = [row for row in rows if row["case"] == case]
    if contender == "Tokenyard":
        medians = sorted(row["ours"]["median"] for row in of_case)
    else:
        medians = [row["peer"]["median"] for row in of_case if row["peer"]["name"] == contender]
    return medians[len(medians) // 2] if medians else 0.0
