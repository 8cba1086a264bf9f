"""Measures collectives beside gloo, through torch and without it, in one run.

    python bench/collectives.py [--smoke] [--only SCENE] [--cells REGEX] [--out bench/results]

Three scenes: two ranks over shared memory; two ranks in network namespaces of their own, over TCP
(needs root and `ip`); four ranks on two cores. Every result is checked before it is timed.
Contenders take turns in blocks of calls; a block's time is that of its slowest rank. Needs torch.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.results_file import write_results  # In this folder.

ROOT = Path(__file__).parents[1]
SIZES = (8, 4 << 10, 256 << 10, 4 << 20, 64 << 20)
SMOKE_SIZES = (8, 4 << 10, 256 << 10)
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")
SHARED, TCP, CROWDED = "2 ranks, shared memory", "2 ranks, TCP", "4 ranks on 2 cores"
NAMESPACES = ("tokenyard-bench-0", "tokenyard-bench-1")
NETWORK = "10.117.43."


@dataclass
class Placement:
    """The environment in which a rank runs."""

    core: int
    address: str = "127.0.0.1"
    host: str = ""
    command: list[str] = field(default_factory=list)
    """Prefix of its command line."""
    environment: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def namespaces() -> Iterator[list[Placement]]:
    """Makes two network namespaces joined by a virtual cable; deletes them at the end."""
    ends = ("tyb0", "tyb1")

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    try:
        for name in NAMESPACES:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for index, (name, end) in enumerate(zip(NAMESPACES, ends, strict=True)):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "address", "add", f"{NETWORK}{index + 1}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield [
            Placement(
                core=index,
                address=f"{NETWORK}{index + 1}",
                host=name,
                command=["ip", "netns", "exec", name],
                environment=dict(GLOO_SOCKET_IFNAME=end),
            )
            for index, (name, end) in enumerate(zip(NAMESPACES, ends, strict=True))
        ]
    finally:
        for name in NAMESPACES:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextlib.contextmanager
def placements_of(scene: str) -> Iterator[list[Placement]]:
    cores = sorted(os.sched_getaffinity(0))[:2]
    local = dict(GLOO_SOCKET_IFNAME="lo")
    if scene == TCP:
        with namespaces() as placements:
            yield placements
    else:
        ranks = 4 if scene == CROWDED else 2
        yield [Placement(core=cores[rank % len(cores)], environment=local) for rank in range(ranks)]


def run(scene: str, cells: list[tuple[str, int]], blocks: int) -> list[dict[str, Any]]:
    """Returns the rows of one scene. Raises RuntimeError if a rank fails."""
    print(f"\n{scene}", flush=True)
    with placements_of(scene) as placements:
        port = free_port()
        ranks = []
        for rank, placement in enumerate(placements):
            place = dict(
                rank=rank,
                size=len(placements),
                store=f"{placements[0].address}:{port}",
                core=placement.core,
                address=placement.address,
                host=placement.host,
                cells=cells,
                blocks=blocks,
            )
            program = [sys.executable, str(Path(__file__).with_name("collectives_rank.py"))]
            ranks.append(
                subprocess.Popen(
                    [*placement.command, *program, json.dumps(place)],
                    env={**os.environ, **placement.environment},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        try:
            rows = list(rows_of(ranks[0], scene, len(placements)))
            if any(rank.wait(60) != 0 for rank in ranks):
                raise RuntimeError(f"{scene}: a rank failed")
            return rows
        finally:
            for rank in ranks:
                rank.kill()


def rows_of(first: subprocess.Popen[str], scene: str, ranks: int) -> Iterator[dict[str, Any]]:
    assert first.stdout is not None
    for line in first.stdout:
        row = json.loads(line)
        print(f"  {row['case']:14} {size_name(row['bytes']):>7}  {figures(row)}", flush=True)
        yield dict(
            case=case_name(row["case"], row["bytes"]),
            scene=scene,
            ranks=ranks,
            bytes=row["bytes"],
            unit="us",
            ours=row["ours"],
            peer=dict(name="gloo", **row["gloo"]),
            without_torch=row["numpy"],
            one_copy=row["copy"],
            choice=row["choice"],
            floor=None,
        )


def figures(row: dict[str, Any]) -> str:
    ours, gloo, native = (row[name]["median"] for name in ("ours", "gloo", "numpy"))
    return f"{ours:10.1f} us, gloo {gloo:10.1f}, {gloo / ours:5.1f}x; without torch {native:10.1f}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def size_name(length: int) -> str:
    if length == 0:
        return ""
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if length >= unit:
            return f"{length // unit} {name}"
    return f"{length} B"


def case_name(operation: str, length: int) -> str:
    return f"{operation} {size_name(length)}".strip()


def environment() -> dict[str, Any]:
    import torch

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return dict(
        cpu=models[0] if models else platform.processor(),
        cores=os.cpu_count(),
        kernel=platform.release(),
        torch=torch.__version__,
        commit=commit.stdout.strip(),
        niceness=os.nice(0),
        load=round(os.getloadavg()[0], 1),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def table(facts: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Returns the rows as a Markdown page."""
    lines = [
        "# Collectives against gloo",
        "",
        f"{facts['cpu']}, {facts['cores']} cores, torch {facts['torch']}, commit "
        f"{facts['commit']}, {facts['date']}; niceness {facts['niceness']}, the machine's load "
        f"{facts['load']}. Microseconds a call through torch: median over blocks (least to most); "
        "contenders in turn, in one run. Bytes are those of a rank's larger buffer; a copy of that "
        "buffer, on all ranks at once, shows what memory "
        "allows. Written by bench/collectives.py.",
    ]
    for scene in dict.fromkeys(row["scene"] for row in rows):
        lines += ["", f"## {scene}", ""]
        lines += [
            "| | ours | gloo | gloo / ours | without torch | a copy | how |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in rows:
            if row["scene"] != scene:
                continue
            ours, gloo, native = row["ours"], row["peer"], row["without_torch"]
            ratio = gloo["median"] / ours["median"]
            lines.append(
                f"| {row['case']} | {cell(ours)} | {cell(gloo)} | {ratio:.1f} | "
                f"{native['median']:.1f} | {row['one_copy']['median']:.1f} | {row['choice']} |"
            )
    return "\n".join(lines) + "\n"


def cell(times: dict[str, Any]) -> str:
    return f"{times['median']:.1f} ({times['min']:.1f} to {times['max']:.1f})"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="small and short")
    parser.add_argument("--only", choices=("shared", "tcp", "crowded"), help="one scene")
    parser.add_argument("--cells", default="", metavar="REGEX", help='like "all_reduce (4|64) MB"')
    parser.add_argument("--blocks", type=int, help="blocks per contender (15, smoke 2)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write collectives.json and .md")
    chosen = parser.parse_args()
    # An early end leaves neither ranks nor namespaces behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    scenes = dict(shared=SHARED, tcp=TCP, crowded=CROWDED)
    sizes = SMOKE_SIZES if chosen.smoke else SIZES
    every = [("barrier", 0), *itertools.product(OPERATIONS, sizes)]
    cells = [cell for cell in every if re.search(chosen.cells, case_name(*cell))]
    blocks = chosen.blocks or (2 if chosen.smoke else 15)
    rows: list[dict[str, Any]] = []
    for name, scene in scenes.items():
        if chosen.only not in (None, name):
            continue
        try:
            rows += run(scene, cells, blocks)
        except (FileNotFoundError, PermissionError, subprocess.CalledProcessError) as error:
            print(f"  skipped: {error}")
    if chosen.out is not None:
        facts = environment()
        chosen.out.mkdir(parents=True, exist_ok=True)
        write_results(chosen.out / "collectives.json", facts, rows)
        (chosen.out / "collectives.md").write_text(table(facts, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
