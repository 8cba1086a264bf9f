"""Goes on after one of its ranks is killed, or stopped.

Processes share the steps of a mixture-of-experts layer. In the midst of them one process is struck:
by SIGKILL, or by SIGSTOP, as a machine that hangs. The others go on without it, or have a new
process take its place, and in the end the result is compared, bit for bit, with one that was worked
out in one place. The exit status is 0 only if all are equal.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import Literal

# Every rank is a process of its own: threads that BLAS adds would only be in the way. Read when
# NumPy is imported, here and in the ranks.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

try:
    import numpy as np
    from recovery.rank import Blow, RankReport, run_rank
    from recovery.work import Work

    import tokenyard
except ModuleNotFoundError as missing:
    sys.exit(f"The example needs the Python package {missing.name}: pip install '.[demo]'")

BLOWS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="processes (4)")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="(200)")
    parser.add_argument(
        "--blow", choices=(*BLOWS, "both"), default="both", help="what strikes a rank (both)"
    )
    parser.add_argument(
        "--on-death",
        choices=("continue", "replace", "both"),
        default="both",
        help="how the others go on (both)",
    )
    parser.add_argument(
        "--timeout", type=float, default=3.0, metavar="SECONDS", help="of every wait (3)"
    )
    chosen = parser.parse_args(arguments)
    if not 3 <= chosen.ranks <= 16:
        parser.error("--ranks must be from 3 to 16")
    if not 10 <= chosen.steps <= 100_000:
        parser.error("--steps must be from 10 to 100000")
    if not 0.5 <= chosen.timeout <= 600:
        parser.error("--timeout must be from 0.5 to 600")
    return chosen


def play(work: Work, blow: Blow, timeout: float) -> bool:
    """One scene. Whether its result is right."""
    name = f"{blow.signal.name}, then {blow.on_death}"
    print(f"{name}: rank {blow.victim} of {work.ranks} at step {blow.step}", flush=True)
    begin = time.monotonic()
    results = tokenyard.launch(
        run_rank,
        ranks=work.ranks,
        processes=True,
        timeout=timeout,
        arena_bytes=16 << 20,
        args=(work, blow),
        on_death=blow.on_death,
    )
    seconds = time.monotonic() - begin
    reports = [result for result in results if isinstance(result, RankReport)]
    told = next(report for report in reports if report.told)
    print(f"  rank {told.lost} was lost: {told.told}, {told.noticed_s:.2f} s after its last step")
    print(f"  the next step ended {told.recovered_s:.2f} s later, on {told.ranks_at_end} ranks")
    for rank, result in enumerate(results):
        if not isinstance(result, RankReport):
            print(f"  rank {rank} ended with {type(result).__name__}: {result}")
    expected = work.reference()
    right = all(np.array_equal(report.state, expected) for report in reports)
    print(
        f"  {len(reports)} ranks came to the end in {seconds:.1f} s; their results are "
        f"{'equal to the reference, bit for bit' if right else 'WRONG'}",
        flush=True,
    )
    return right


def main(arguments: list[str] | None = None) -> int:
    chosen = parse(arguments)
    work = Work(chosen.ranks, chosen.steps)
    blows = BLOWS.values() if chosen.blow == "both" else [BLOWS[chosen.blow]]
    ways: tuple[Literal["continue", "replace"], ...] = ("continue", "replace")
    if chosen.on_death != "both":
        ways = (chosen.on_death,)
    right = [
        play(work, Blow(blow, chosen.ranks // 2, chosen.steps // 2, way), chosen.timeout)
        for blow in blows
        for way in ways
    ]
    return 0 if all(right) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("Interrupted.")
    except tokenyard.Error as error:
        sys.exit(f"{type(error).__name__}: {error}")
