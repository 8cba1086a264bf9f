"""Measures Tokenyard beside other libraries on the same GPUs, with the same tokens, in one run.

    python bench/peers --site deep_ep_v1=FOLDER --out bench/results
    python bench/peers --site deep_ep_v2=FOLDER --nccl FOLDER
    python bench/peers --page    # docs/against_deep_ep.md from bench/results

A site is the folder that bench/peers/build.sh makes from a peer's sources. The peers' packages
share one name, so each peer has its own scene: one process per GPU, in which our calls and the
peer's take turns. Both are checked before anything is timed. Times are in us, of the slowest rank.

Needs GPUs, torch, and tokenyard's package and module on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from environment import environment
from page import write_page
from results_file import write_results
from scene import Place, SceneError, play

ROOT = Path(__file__).resolve().parents[2]
PEERS = {
    "deep_ep_v1": ("throughput", "low_latency"),
    "deep_ep_v2": ("throughput", "low_latency"),
    "hybrid_ep": ("throughput",),
}
"""Shape of each kind of scene."""
MANY = dict(tokens=4096, hidden=7168, topk=8, experts=256)
FEW = dict(tokens=128, hidden=7168, topk=8, experts=288)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--site", action="append", default=[], metavar="PEER=FOLDER")
    parser.add_argument(
        "--nccl", type=Path, metavar="FOLDER", help="a pip --target folder with deep_ep_v2's NCCL"
    )
    parser.add_argument("--ranks", type=int, default=2, help="GPUs")
    parser.add_argument("--sms", default="16,24", help="multiprocessors per throughput call")
    parser.add_argument("--tokens", default="128,64,16,1", help="tokens per low-latency batch")
    parser.add_argument("--seconds", type=float, default=100, help="time limit per scene")
    parser.add_argument("--commit", default="", help="commit to record outside a checkout")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write NAME_peers_N_gpus.json")
    parser.add_argument("--page", action="store_true", help="only write the page of the docs")
    chosen = parser.parse_args()
    if chosen.page:
        write_page(ROOT / "bench/results", ROOT / "docs")
        return 0
    sites = dict(site.partition("=")[::2] for site in chosen.site)
    unknown = sorted(sites.keys() - PEERS.keys())
    if unknown or not sites:
        print(
            "There is no peer to measure beside: give --site PEER=FOLDER, made by "
            f"bench/peers/build.sh; peers are {', '.join(PEERS)}."
            + (f" Unknown: {', '.join(unknown)}." if unknown else ""),
            file=sys.stderr,
        )
        return 2
    rows: dict[str, list[dict[str, Any]]] = {"throughput": [], "low_latency": []}
    failed = False
    for place in scenes(sites, chosen):
        of_kind = rows[place.kind]
        try:
            for row in play(place, chosen.seconds, environment_of(place.peer, chosen.nccl)):
                print(line_of(row), flush=True)
                of_kind.append(row)
        except SceneError as error:
            print(f"failed: {error}", flush=True)
            failed = True
        if chosen.out is not None and of_kind:
            facts = environment(chosen.ranks, chosen.commit)
            chosen.out.mkdir(parents=True, exist_ok=True)
            name = f"{place.kind}_peers_{chosen.ranks}_gpus.json"
            write_results(chosen.out / name, facts, of_kind)
    return 1 if failed else 0


def scenes(sites: dict[str, str], chosen: argparse.Namespace) -> Iterator[Place]:
    """Prints the name and duration of each scene."""
    for peer, site in sites.items():
        for kind in PEERS[peer]:
            print(f"\n{kind} beside {peer}", flush=True)
            begun = time.monotonic()
            many = kind == "throughput"
            yield Place(
                kind=kind,
                peer=peer,
                site=str(Path(site).resolve()),
                shape=MANY if many else FEW,
                values=values_of(peer, numbers(chosen.sms if many else chosen.tokens)),
                ranks=chosen.ranks,
            )
            print(f"({time.monotonic() - begun:.0f} s)", flush=True)


def values_of(peer: str, values: list[int]) -> list[int]:
    """Returns one number of multiprocessors for HybridEP, which recompiles its kernels for each."""
    return values[:1] if peer == "hybrid_ep" else values


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def environment_of(peer: str, nccl: Path | None) -> dict[str, str]:
    """Returns additional environment variables of a peer's processes."""
    if peer != "deep_ep_v2":
        return {}
    # GPUs of one host reach each other without a network.
    if nccl is None:
        return dict(EP_DISABLE_GIN="1")
    # torch loads the first NCCL on Python's path, and a process may load only one.
    path = [str(nccl.resolve()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    root = nccl.resolve() / "nvidia" / "nccl"
    return dict(
        EP_DISABLE_GIN="1",
        EP_NCCL_ROOT_DIR=str(root),
        PYTHONPATH=os.pathsep.join(filter(None, path)),
    )


def line_of(row: dict[str, Any]) -> str:
    ours, peer = row["ours"], row["peer"]
    text = (
        f"  {row['case']:28} {row['tokens']:5} tokens {row['sms']:3} SMs  "
        f"{ours['median']:8.1f} ({ours['min']:.1f} to {ours['max']:.1f}), {peer['name']} "
        f"{peer['median']:8.1f} ({peer['min']:.1f} to {peer['max']:.1f}), "
        f"{peer['median'] / ours['median']:.2f}x"
    )
    if "ours_call" in row:
        text += f"; calls {row['ours_call']['median']:.1f}, {row['peer_call']['median']:.1f}"
    return text + (f"; floor {row['floor']:.1f}" if row["floor"] else "")


if __name__ == "__main__":
    sys.exit(main())
