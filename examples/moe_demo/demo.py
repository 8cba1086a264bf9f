"""Runs the demo: the layer on its ranks, the dense reference, and the report."""

from __future__ import annotations

import argparse

from program import Refused
from rich.console import Console

import tokenyard

from . import reference, report
from .hosts_plot import plot_hosts
from .layer import Shape
from .load_plot import plot_load
from .rank import STEPS, RankReport, run_rank
from .text import Text, read_text
from .ticks import Ticks
from .traffic import Traffic


def check(
    shape: Shape, text: Text, reports: list[RankReport], hosts: int, ticks: Ticks
) -> report.Verdict:
    expected = reference.dense(shape, text.tokens, ticks.task("dense reference", shape.experts))
    errors = [expected.error(rank, of_rank.out) for rank, of_rank in enumerate(reports)]
    return report.Verdict(errors, reference.tolerance(hosts))


def run(chosen: argparse.Namespace) -> int:
    """Runs the demo as its arguments say; returns the exit status."""
    console = Console()
    try:
        text = read_text(chosen.text, chosen.ranks, chosen.tokens)
    except (OSError, ValueError) as error:
        raise Refused(f"--text: {error}") from None
    shape = Shape(
        ranks=chosen.ranks,
        experts=chosen.experts,
        topk=chosen.top_k,
        hidden=chosen.hidden,
        tokens=chosen.tokens,
        words=len(text.words),
        seed=chosen.seed,
    )
    with Ticks(console) as ticks:
        kind = "processes" if chosen.processes else "threads"
        reports = tokenyard.launch(
            run_rank,
            ranks=shape.ranks,
            processes=chosen.processes,
            device=chosen.device,
            hosts=chosen.hosts,
            args=(shape, text.tokens, ticks.task(f"layer on {kind}", shape.ranks * STEPS)),
        )
        verdict = check(shape, text, reports, chosen.hosts, ticks)
    report.print_result(console, reports, verdict)

    pictures = "load.png"
    plot_load(chosen.out / "load.png", shape, text, reports)
    traffic = Traffic.of(shape, reports)
    if chosen.hosts > 1:
        pictures = "load.png, hosts.png"
        plot_hosts(chosen.out / "hosts.png", traffic)
        console.print(traffic.sentence(), highlight=False)
    report.write_trace(chosen.out / "trace.json", reports)
    report.write_report(chosen.out / "report.json", shape, reports, verdict, traffic)
    console.print(
        f"{'[green]Right' if verdict.ok else '[red]Wrong'}[/]: the largest error is "
        f"{verdict.max_error:.5f} of the numbers summed; {verdict.tolerance:.5f} is allowed.",
        highlight=False,
    )
    console.print(f"See {chosen.out}/{pictures}, trace.json (ui.perfetto.dev) and report.json.")
    return 0 if verdict.ok else 1
