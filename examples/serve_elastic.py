"""Serves requests while a rank is killed and replaced.

Four processes decode by low-latency exchanges; requests keep coming. It runs three times:
undisturbed; with a rank killed in the midst of decode steps, while every expert has a replica on
another rank; and the same without replicas. The survivors go on, and a new process takes the place
while they serve. With replicas no request is lost, and every answer equals that of the undisturbed
run. Without, each answer says how many of its experts' results it lacks. Writes
out/serving/serving.png and out/serving/report.json; the exit status is 0 only if all of this holds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import program

STEPS_MAX = 100_000


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="processes (4)")
    parser.add_argument(
        "--steps",
        type=int,
        default=200,
        metavar="N",
        help="decode steps before the kill, and again after it, without and with the new process "
        "(200)",
    )
    parser.add_argument("--out", type=Path, default=Path("out/serving"), metavar="FOLDER")
    chosen = parser.parse_args(arguments)
    if not 3 <= chosen.ranks <= 16:
        parser.error("--ranks must be from 3 to 16: a majority has to survive")
    if not 10 <= chosen.steps <= STEPS_MAX:
        parser.error(f"--steps must be from 10 to {STEPS_MAX}")
    return chosen


def main() -> int:
    chosen = parse(None)
    program.write_into(chosen.out, ["serving.png", "report.json"])
    with program.importing():
        from elastic_serving import serving  # Heavy: only once the arguments are valid.

    return serving.run(chosen)


if __name__ == "__main__":
    program.run(main)
