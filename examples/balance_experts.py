"""Moves hot experts apart while a mixture-of-experts layer runs.

A gate prefers a few experts, and other ones as time passes, so the ranks that hold them receive
most rows and the others wait for them. From time to time the rows of each expert are measured,
`tokenyard.moe.balance_experts` makes a map with replicas of the hot experts, and weights move
to where the map has them. Beside it, the same tokens go through a layer whose experts never move.
Results of both are checked against a dense computation. Writes out/balance/balance.png and
report.json; the exit status is 0 only if results are right and the moved experts better balanced.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import program

RANKS_MAX = 64
STEPS_MAX = 100_000


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="ranks (4)")
    parser.add_argument("--experts", type=int, default=16, metavar="N", help="experts (16)")
    parser.add_argument(
        "--spare", type=int, metavar="N", help="places for replicas, over all ranks (1 per rank)"
    )
    parser.add_argument("--top-k", type=int, default=2, metavar="N", help="experts per token (2)")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="per rank (128)")
    parser.add_argument("--steps", type=int, default=36, metavar="N", help="(36)")
    parser.add_argument("--every", type=int, default=6, metavar="N", help="steps per map (6)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of all (1)")
    parser.add_argument("--out", type=Path, default=Path("out/balance"), metavar="FOLDER")
    chosen = parser.parse_args(arguments)
    if chosen.spare is None:
        chosen.spare = max(chosen.ranks, 0)
    rules = {
        f"--ranks must be from 2 to {RANKS_MAX}": 2 <= chosen.ranks <= RANKS_MAX,
        f"--experts must be from the {chosen.ranks} ranks to 1024": chosen.ranks
        <= chosen.experts
        <= 1024,
        f"--spare must be from 0 to the {chosen.experts} experts": 0
        <= chosen.spare
        <= chosen.experts,
        f"--top-k must be from 1 to 32 and at most the {chosen.experts} experts": 1
        <= chosen.top_k
        <= min(32, chosen.experts),
        "--tokens must be from 1 to 65536": 1 <= chosen.tokens <= 65536,
        f"--steps must be from 2 to {STEPS_MAX}": 2 <= chosen.steps <= STEPS_MAX,
        f"--every must be from 1 to less than the {chosen.steps} steps": 1
        <= chosen.every
        < chosen.steps,
        "--seed must not be negative": chosen.seed >= 0,
    }
    for rule, kept in rules.items():
        if not kept:
            parser.error(rule)
    return chosen


def main() -> int:
    chosen = parse(None)
    program.write_into(chosen.out, ["balance.png", "report.json"])
    with program.importing():
        from balancing import balancing  # Heavy: only once the arguments are valid.

    return balancing.run(chosen)


if __name__ == "__main__":
    program.run(main)
