"""Writes docs/performance.md from bench/results, and with across_hosts.py docs/across_hosts.md.

    python docs/_site/performance.py          # writes the page
    python docs/_site/performance.py --check  # says whether it is what the results say

Each result file has one table, of its main rows, and the command that repeats it. The pages that a
table leads to have the others.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import across_hosts  # In this folder.

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = ROOT / "bench/results", ROOT / "docs/performance.md"

Row = dict[str, Any]
Choice = Callable[[Row], bool]

INTRODUCTION = """\
# Performance

<!-- Written by docs/_site/performance.py from bench/results; change those. -->

Each table is one file of [bench/results](../bench/results), measured on the machine, commit and
date above it, and followed by the command that repeats it there. Times are medians; in brackets are
the fastest and slowest. "Bytes alone" is the time of the busiest rank's bytes on its links, or of
streaming a decoder's weights. "Peer" ran beside ours on the same machine, taking turns. DeepEP V1
is meant for 24 SMs.
"""


class Table(NamedTuple):
    """A result file and the rows of it that are shown."""

    file: str
    title: str
    command: str
    shown: Choice = lambda row: True
    more: str = ""
    """The page with the other rows."""


def at(**wanted: Any) -> Choice:
    """Returns whether a row has these values; a tuple or list means any of them."""

    def shown(row: Row) -> bool:
        return all(
            row.get(key) in value if isinstance(value, (tuple, list)) else row.get(key) == value
            for key, value in wanted.items()
        )

    return shown


EXCHANGES = (
    "dispatch bf16 uncached", "dispatch fp8 uncached", "dispatch bf16 cached",
    "combine bf16, y in the arena", "combine bf16, ordinary y",
    "dispatch bf16 into expert-major", "combine bf16 from expert-major",
)  # fmt: skip
CALLS = (
    "dispatch fp8, in kernel", "combine bf16, in kernel", "both, per pair",
    "both, per pair of a graph", "hooks: dispatch, multiprocessors held",
    "hooks: combine, multiprocessors held",
)  # fmt: skip
PEERS = (
    "python bench/peers --site deep_ep_v1=SITE --site deep_ep_v2=SITE --nccl FOLDER "
    "--out bench/results"
)
BESIDE = ("dispatch bf16", "dispatch fp8", "combine bf16", "dispatch bf16 by expert",
          "dispatch bf16 by expert, at once", "combine bf16 by expert")  # fmt: skip


def beside(row: Row) -> bool:
    """Returns whether a pair is shown: those of 16 SMs, and all of DeepEP V1."""
    v1 = row["peer"]["name"].startswith("deep_ep 1.")
    return row["case"] in BESIDE and (row["sms"] == 16 or v1)


THROUGHPUT, LOW_LATENCY = "./run bench throughput", "./run bench low_latency"
DECODE = "./run bench megakernel_decode"
ON_DEVICES = "./run bench device_collectives"
SIZES = "8,65536,1048576,4194304,16777216,67108864,268435456"

GROUPS: dict[str, list[Table]] = {
    "Throughput dispatch and combine": [
        Table("throughput_peers_4_gpus.json", "Throughput beside peers, 4 GPUs", PEERS,
              beside, "against_deep_ep.md#throughput-4-gpus"),
        Table("throughput_peers_2_gpus.json", "Throughput beside peers, 2 GPUs", PEERS,
              beside, "against_deep_ep.md#throughput-2-gpus"),
        Table("throughput.json", "Throughput, 4 GPUs", f"{THROUGHPUT} --sms 16,32",
              at(sms=(16, 32), case=EXCHANGES), "choosing_sms.md"),
        Table("throughput_2_gpus_by_sms.json", "Throughput, 2 GPUs",
              f"{THROUGHPUT} --ranks 2 --sms 16,32",
              at(sms=(16, 32), case=EXCHANGES), "choosing_sms.md"),
        Table("throughput_2_gpus_16_sms.json", "Throughput, 2 GPUs, few tokens",
              f"{THROUGHPUT} --ranks 2 --sms 16 --tokens 128",
              at(tokens=128, case=EXCHANGES), "choosing_sms.md"),
        Table("throughput_2_gpus.json", "Throughput, 2 GPUs, by tokens",
              f"{THROUGHPUT} --ranks 2 --sweep",
              lambda row: row["hidden"] == 7168 and row["tokens"] != 4096
              and row["case"] in ("dispatch bf16 uncached", "combine bf16, y in the arena"),
              "choosing_sms.md"),
        Table("host_time_2_gpus.json", "Host time of a call from Python",
              "python bench/host_time.py"),
    ],
    "Low latency": [
        Table("low_latency_peers_4_gpus.json", "Low latency beside peers, 4 GPUs", PEERS,
              at(tokens=128, case=CALLS), "against_deep_ep.md#low-latency-4-gpus"),
        Table("low_latency_peers_2_gpus.json", "Low latency beside peers, 2 GPUs", PEERS,
              at(tokens=128, case=CALLS), "against_deep_ep.md#low-latency-2-gpus"),
        Table("low_latency_peers_2_gpus_h100.json", "Low latency beside peers, 2 GPUs (H100)",
              PEERS, at(tokens=128, case=CALLS)),
        Table("low_latency.json", "Low latency, 4 GPUs", f"{LOW_LATENCY} --tokens 1,16,64,128",
              at(hidden=7168, sms=0, case=CALLS), "low_latency.md#four-h200"),
        Table("low_latency_2_gpus.json", "Low latency, 2 GPUs",
              f"{LOW_LATENCY} --ranks 2 --tokens 1,16,64,128",
              at(hidden=7168, sms=0, case=CALLS), "low_latency.md#two-h200"),
        Table("low_latency_2_gpus_h100.json", "Low latency, 2 GPUs (H100)",
              f"{LOW_LATENCY} --ranks 2 --tokens 1,16,64,128", at(hidden=7168, sms=0, case=CALLS)),
    ],
    "Megakernel": [
        Table("megakernel_torch.json", "Decode beside torch",
              "python bench/peers/decode.py --ours build/cuda/bench/megakernel_decode --compile "
              "--sequences 1,2,4,8"),
        Table("megakernel_decode_2_gpus.json", "Decode, 1 and 2 GPUs",
              f"{DECODE} --ranks 2 --sequences 2,4,8"),
        Table("megakernel_decode.json", "Decode, 1, 2 and 4 GPUs",
              f"{DECODE} --ranks 2,4 --sequences 2,4,8"),
        Table("megakernel_decode_1_gpu.json", "Decode, 1 GPU", f"{DECODE} --sequences 2,4,8"),
        Table("megakernel_decode_h100.json", "Decode with tensor cores (H100)",
              f"{DECODE} --ranks 2 --sequences 2,4,8"),
        Table("megakernel_decode_h100_inside.json",
              "Decode, the vector carried on while it is read (H100)",
              f"{DECODE} --sequences 2,4,8"),
        Table("megakernel_context_4000.json", "Decode of context 4000", f"{DECODE} --context 4000"),
        Table("megakernel.json", "A hop between tasks", "./run bench megakernel"),
    ],
    "Collectives": [
        Table("collectives.json", "Collectives beside gloo, through torch",
              "python bench/collectives.py --out bench/results",
              lambda row: "64 MB" in row["case"] or row["case"] in ("barrier", "all_reduce 8 B"),
              "../bench/results/collectives.md"),
        Table("collectives_tcp.json", "Collectives over TCP",
              "python bench/collectives.py --only tcp",
              lambda row: "64 MB" in row["case"] or row["case"] in ("barrier", "all_reduce 8 B"),
              "../bench/results/collectives_tcp.md"),
        Table("cuda_collectives.json", "Collectives on CUDA tensors beside NCCL, 2 GPUs",
              f"{ON_DEVICES} --nccl libnccl.so.2 --bytes {SIZES}",
              lambda row: not any(size in row["case"] for size in (" 4 KB", "256 KB"))),
        Table("cuda_collectives_arena.json",
              "Collectives on CUDA tensors of the arena beside NCCL, 2 GPUs",
              f"{ON_DEVICES} --nccl libnccl.so.2 --protocol direct --bytes {SIZES}",
              lambda row: any(size in row["case"] for size in ("16 MB", "64 MB", "256 MB"))),
        Table("cuda_collectives_bf16.json", "The same, BF16",
              f"{ON_DEVICES} --nccl libnccl.so.2 --type bf16 --bytes 8,65536,1048576,67108864",
              lambda row: any(size in row["case"] for size in (" 8 B", "1 MB", "64 MB"))),
        Table("cuda_collectives_arena_bf16.json", "The same, BF16 tensors of the arena",
              f"{ON_DEVICES} --nccl libnccl.so.2 --type bf16 --protocol direct --bytes 67108864",
              lambda row: "64 MB" in row["case"]),
        Table("cuda_collectives_keep_inputs.json", "Calls that keep their input, 2 GPUs",
              "./run bench device_collectives --keep-inputs --operations all_reduce"),
    ],
    "Between hosts": [
        Table("across_hosts_2_gpus.json", "Dispatch and combine of two GPUs as two hosts, over TCP",
              "./run bench across_hosts --sms 8 24"),
        Table("paced_hosts.json",
              "Network namespaces of two ranks on two cores, their cards paced",
              "python bench/paced_hosts.py --rate 10 0 --calls 3"),
        Table("across_hosts_1_gpu.json",
              "One rank of hosts of 8, its link modelled: 50 GB/s each way, one GPU",
              "./run bench across_hosts --one-gpu --hosts 8 4 2; --hosts 8 --sms 8; "
              "--hosts 8 --tokens 128"),
        Table("across_hosts.json", "Dispatch and combine over modelled links of 50 GB/s",
              "./run bench across_hosts_model --output bench/results/across_hosts.json "
              "--hosts HOSTS --tokens TOKENS --calls CALLS", more="across_hosts.md"),
        Table("cuda_collectives_across_hosts.json",
              "Collectives of two GPUs as two hosts, over TCP",
              "./run bench collectives_across_hosts"),
        Table("networks.json", "Puts and round trips over TCP, and pinned memory, one GPU",
              "./run bench networks --device cuda"),
        Table("networks_2_gpus.json", "The same, 2 GPUs", "./run bench networks --device cuda"),
    ],
}  # fmt: skip
ELSEWHERE = {"mutants.json", "install.json", "across_hosts_deep_ep_v1.json"}
"""Results of other pages: docs/mutants.md, docs/install.md and docs/across_hosts.md."""
MACHINE = ("gpu", "cpu", "driver", "cuda", "torch", "commit", "date")


def page() -> str:
    """Returns the page."""
    shown = [table.file for tables in GROUPS.values() for table in tables]
    there = {path.name for path in RESULTS.glob("*.json")} - ELSEWHERE
    if set(shown) != there:
        raise ValueError(f"files without a table, or the reverse: {set(shown) ^ there}")
    parts = [INTRODUCTION]
    for group, tables in GROUPS.items():
        parts.append(f"## {group}\n")
        parts += [part for table in tables for part in parts_of(table)]
    return "\n".join(parts).rstrip() + "\n"


def install_rows() -> list[str]:
    """Returns the table's rows of docs/install.md."""
    measured = json.loads((RESULTS / "install.json").read_text(encoding="utf-8"))
    return [
        f"| {row['case']} | {row['cores']} | {row['ours']['median'] / 1e6:.0f} "
        f"| {row['wheel_bytes'] / 1e6:.1f} |"
        for row in measured["rows"]
    ]


def parts_of(table: Table) -> list[str]:
    measured = json.loads((RESULTS / table.file).read_text(encoding="utf-8"))
    rows = [row for row in measured["rows"] if table.shown(row)]
    if not rows:
        raise ValueError(f"{table.file}: no row is shown")
    facts = measured["environment"]
    columns = [name for name in ("scene", "gpus", "tokens", "hidden", "sms") if varies(name, rows)]
    if facts.get("gpu") == "modelled":
        columns.insert(0, "ranks")
    peers = any(row.get("peer") for row in rows)
    floors = any(row.get("floor") for row in rows)
    heads = [NAMES[name] for name in columns] + ["Tokenyard"]
    heads += ["Peer"] * peers + ["Bytes alone"] * floors
    units = {row["unit"] for row in rows}
    unit = f", {units.pop()}" if len(units) == 1 else ""
    lines = [f"| Case{unit} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for row in rows:
        case = row["case"] if unit else f"{row['case']}, {row['unit']}"
        cells = [case, *(str(row[name]) for name in columns), ours(row)]
        if peers:
            peer = row.get("peer")
            cells.append(f"{peer['name']}: {spread(peer)}" if peer else "")
        if floors:
            cells.append(number(row["floor"]) if row.get("floor") else "")
        lines.append(f"| {' | '.join(cells)} |")
    machine = ", ".join(f"{name} {value}".strip() for name, value in named(facts))
    source = f"[{table.file}](../bench/results/{table.file})"
    total = len(measured["rows"])
    rest = f" ({len(rows)} of {total} rows)" if len(rows) < total else ""
    more = f"; more in [{title_of(table.more)}]({table.more})" if table.more else ""
    return [
        f"### {table.title}\n",
        f"{constant(rows)}{machine}. Source: {source}{rest}{more}.\n",
        *lines,
        "",
        f"Repeat: `{table.command}`\n",
    ]


NAMES = {"scene": "Scene", "gpus": "GPUs", "ranks": "Ranks", "tokens": "Tokens",
         "hidden": "Hidden", "sms": "SMs"}  # fmt: skip


def title_of(link: str) -> str:
    """Returns the title of the page that a link leads to."""
    text = (PAGE.parent / link.partition("#")[0]).read_text(encoding="utf-8")
    return text.partition("\n")[0].removeprefix("# ")


def constant(rows: list[Row]) -> str:
    """Returns the sizes that all rows share."""
    said = {"gpus": "GPUs", "tokens": "tokens per rank", "hidden": "hidden", "sms": "SMs"}
    if rows[0]["case"].startswith(("decode", "hop")):
        said = {"gpus": "GPUs"}  # The other fields hold the bench's own sizes.
    shared = [
        f"hidden {rows[0][name]}" if name == "hidden" else f"{rows[0][name]} {what}"
        for name, what in said.items()
        if rows[0].get(name) and not varies(name, rows)
    ]
    return f"{', '.join(shared)}; ".replace("1 GPUs", "1 GPU") if shared else ""


def named(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the machine's facts in one order, without a GPU's serial number."""
    words = {"gpu": "", "cpu": "", "cuda": "CUDA"}
    return [
        (words.get(name, name), str(facts[name]).partition(" #")[0])
        for name in MACHINE
        if name in facts and not (name == "cpu" and "gpu" in facts)
    ]


def varies(name: str, rows: list[Row]) -> bool:
    return len({row.get(name) for row in rows}) > 1


def ours(row: Row) -> str:
    """Returns our time, with its commit if that is not the file's."""
    commit = f", commit {row['commit']}" if row.get("commit") else ""
    return spread(row["ours"]) + commit


def spread(times: dict[str, Any]) -> str:
    """Returns a median and its range."""
    median, least, most = (number(times[name]) for name in ("median", "min", "max"))
    return f"{median} ({least}-{most})"


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes docs/performance.md from bench/results")
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
        across_hosts.write()
    elif PAGE.read_text(encoding="utf-8") != page() or not across_hosts.is_current():
        print(
            "docs/performance.md or docs/across_hosts.md is stale: "
            "run python docs/_site/performance.py",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
