"""Trains a small network on a text while its ranks are killed and replaced.

Four processes share the work of each step. The training runs twice: once undisturbed, once with
ranks killed, rank 0 included, and two at a time. New processes take their places, the interrupted
step is repeated, and the loss is the same at every step, to the last bit. Writes
out/elastic/loss.png and out/elastic/report.json; the exit status is 0 only if the curves are equal.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import program

SHIPPED_TEXT = Path(__file__).parent / "data" / "alice.txt"
STEPS_MAX = 1_000_000


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="processes (4)")
    parser.add_argument("--steps", type=int, default=400, metavar="N", help="(400)")
    parser.add_argument("--text", type=Path, default=SHIPPED_TEXT, metavar="FILE", help="any text")
    parser.add_argument("--out", type=Path, default=Path("out/elastic"), metavar="FOLDER")
    chosen = parser.parse_args(arguments)
    if not 3 <= chosen.ranks <= 64:
        parser.error("--ranks must be from 3 to 64: a majority has to survive")
    if not 10 <= chosen.steps <= STEPS_MAX:
        parser.error(f"--steps must be from 10 to {STEPS_MAX}")
    return chosen


def main() -> int:
    chosen = parse(None)
    program.write_into(chosen.out, ["loss.png", "report.json"])
    with program.importing():
        from elastic_training import training  # Heavy: only once the arguments are valid.

    return training.run(chosen)


if __name__ == "__main__":
    program.run(main)
