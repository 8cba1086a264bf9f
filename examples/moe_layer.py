"""Sends a text through one mixture-of-experts layer that is spread over several ranks.

Words become vectors, and a gate chooses experts for each. Tokenyard sends them to the ranks that
hold these experts and returns the results, and a dense computation in one process checks every
number. Writes out/demo/load.png, out/demo/trace.json (for ui.perfetto.dev) and
out/demo/report.json, and out/demo/hosts.png, the traffic by host, if there are several; the exit
status is 0 only if all results are within tolerance.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import program

SHIPPED_TEXT = Path(__file__).parent / "data" / "alice.txt"
RANKS_MAX = 64
"""Largest number of ranks: each has an executor with threads, and more would only wait for cores.
"""
TOP_K_MAX = 32


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--ranks", type=int, default=4, metavar="N", help=f"ranks, at most {RANKS_MAX} (4)"
    )
    parser.add_argument(
        "--hosts",
        type=int,
        default=1,
        metavar="N",
        help="hosts that the ranks count as being on, as equal parts (1)",
    )
    parser.add_argument(
        "--experts", type=int, metavar="N", help="experts over all ranks (4 per rank)"
    )
    parser.add_argument("--top-k", type=int, default=2, metavar="N", help="experts per word (2)")
    parser.add_argument(
        "--hidden", type=int, default=256, metavar="N", help="elements per row (256)"
    )
    parser.add_argument("--tokens", type=int, default=512, metavar="N", help="words per rank (512)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of all weights (1)")
    parser.add_argument(
        "--processes", action="store_true", help="run each rank in a process, not a thread"
    )
    parser.add_argument("--device", choices=("host", "cuda"), default="host", help="(host)")
    parser.add_argument("--text", type=Path, default=SHIPPED_TEXT, metavar="FILE", help="any text")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), metavar="FOLDER")
    chosen = parser.parse_args(arguments)
    if chosen.experts is None:
        chosen.experts = 4 * chosen.ranks
    rules = {
        f"--ranks must be from 1 to {RANKS_MAX}": 1 <= chosen.ranks <= RANKS_MAX,
        f"--hosts must be a divisor of the {chosen.ranks} ranks": chosen.hosts >= 1
        and chosen.ranks % chosen.hosts == 0,
        "--tokens must be at least 1": chosen.tokens >= 1,
        "--seed must not be negative": chosen.seed >= 0,
        "--hidden must be a positive multiple of 8": chosen.hidden > 0 and chosen.hidden % 8 == 0,
        f"--experts must be a positive multiple of the {chosen.ranks} ranks": chosen.experts > 0
        and chosen.experts % max(chosen.ranks, 1) == 0,
        f"--top-k must be from 1 to {TOP_K_MAX} and at most the {chosen.experts} experts": 1
        <= chosen.top_k
        <= min(TOP_K_MAX, chosen.experts),
    }
    for rule, kept in rules.items():
        if not kept:
            parser.error(rule)
    return chosen


def memory_of(chosen: argparse.Namespace) -> int:
    """Estimates the memory of a run in bytes; weights and rows dominate."""
    weights = chosen.experts * 6 * chosen.hidden**2 * 4  # gate, up, down: hidden x 2 hidden, fp32
    words = chosen.ranks * chosen.tokens
    # Per word: a row as fp32 in the rank's report, its process's and the reference, and as BF16 in
    # transit; its scores for each expert, twice; and the word itself.
    rows = words * (chosen.hidden * 4 * 4 + chosen.experts * 4 * 2 + 100)
    table = chosen.ranks * min(words, 100_000) * chosen.hidden * 4  # each rank embeds words itself
    return weights + rows + table


def main() -> int:
    chosen = parse(None)
    sizes = f"--ranks {chosen.ranks}, --tokens {chosen.tokens}, --hidden {chosen.hidden}"
    program.require_memory(memory_of(chosen), f"{sizes} and --experts {chosen.experts}")
    pictures = ["load.png"] if chosen.hosts == 1 else ["load.png", "hosts.png"]
    program.write_into(chosen.out, [*pictures, "trace.json", "report.json"])
    with program.importing():
        from moe_demo import demo  # Heavy: only once the arguments are valid.

    return demo.run(chosen)


if __name__ == "__main__":
    program.run(main)
