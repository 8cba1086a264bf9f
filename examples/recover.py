"""Continues after one of its ranks is killed or stopped.

Processes share the steps of a mixture-of-experts layer. One process receives SIGKILL during a step,
or SIGSTOP, like a machine that hangs. The others continue without it, or let a new process take its
place. At the end the result is compared bit for bit with a single-process reference. The exit
status is 0 only if all are equal.
"""

from __future__ import annotations

import argparse

import program


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="processes (4)")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="(200)")
    parser.add_argument(
        "--blow",
        choices=("kill", "stop", "both"),
        default="both",
        help="signal that a rank receives (both)",
    )
    parser.add_argument(
        "--on-death",
        choices=("continue", "replace", "both"),
        default="both",
        help="how the others continue (both)",
    )
    parser.add_argument(
        "--timeout", type=float, default=3.0, metavar="SECONDS", help="deadline of every wait (3)"
    )
    chosen = parser.parse_args(arguments)
    if not 3 <= chosen.ranks <= 16:
        parser.error("--ranks must be from 3 to 16")
    if not 10 <= chosen.steps <= 100_000:
        parser.error("--steps must be from 10 to 100000")
    if not 0.5 <= chosen.timeout <= 600:
        parser.error("--timeout must be from 0.5 to 600")
    return chosen


def main() -> int:
    chosen = parse(None)
    with program.importing():
        from recovery import scenes  # Heavy: only once the arguments are valid.

    return scenes.run(chosen)


if __name__ == "__main__":
    program.run(main)
