"""Trains a small mixture-of-experts language model whose experts are spread over the ranks.

The model predicts bytes of a text: two transformer blocks, sixteen experts per block, two per byte.
First one rank trains alone for some steps, with all experts; then all ranks train together, each
with its part of the experts and its share of every step. The losses must agree up to rounding.
Writes out/train_moe/loss.png and report.json; the exit status is 0 only if they agree.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import program

SHIPPED_TEXT = Path(__file__).parent / "data" / "alice.txt"
COMPARED = 50
STEPS_MAX = 1_000_000


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="processes (4)")
    parser.add_argument(
        "--hosts",
        type=int,
        default=1,
        metavar="N",
        help="hosts that the ranks count as being on, as equal parts (1)",
    )
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="(200)")
    parser.add_argument(
        "--compared",
        type=int,
        metavar="N",
        help="steps that one rank also trains alone (50, or all)",
    )
    parser.add_argument("--device", choices=("host", "cuda"), default="host", help="(host)")
    parser.add_argument("--text", type=Path, default=SHIPPED_TEXT, metavar="FILE", help="any text")
    parser.add_argument("--out", type=Path, default=Path("out/train_moe"), metavar="FOLDER")
    chosen = parser.parse_args(arguments)
    if chosen.ranks not in (1, 2, 4, 8, 16):
        parser.error("--ranks must be 1, 2, 4, 8 or 16, to share 16 experts and 16 windows")
    if chosen.hosts < 1 or chosen.ranks % chosen.hosts:
        parser.error(f"--hosts must be a divisor of the {chosen.ranks} ranks")
    if not 1 <= chosen.steps <= STEPS_MAX:
        parser.error(f"--steps must be from 1 to {STEPS_MAX}")
    if chosen.compared is None:
        chosen.compared = min(COMPARED, chosen.steps)
    if not 0 <= chosen.compared <= chosen.steps:
        parser.error(f"--compared must be from 0 to the {chosen.steps} steps")
    return chosen


def main() -> int:
    chosen = parse(None)
    program.write_into(chosen.out, ["loss.png", "report.json"])
    with program.importing():
        from moe_training import training  # Heavy: only once the arguments are valid.

    return training.run(chosen)


if __name__ == "__main__":
    program.run(main)
