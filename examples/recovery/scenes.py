"""The scenes: a signal, a way to continue, and a check of the result."""

from __future__ import annotations

import argparse
import signal
import time
from typing import Literal

import numpy as np

import tokenyard

from .rank import ARENA_BYTES, Blow, RankReport, run_rank
from .work import Work

BLOWS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def run(chosen: argparse.Namespace) -> int:
    """Plays the scenes that the arguments select; returns the exit status."""
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


def play(work: Work, blow: Blow, timeout: float) -> bool:
    """Plays one scene; returns whether its result is right."""
    name = f"{blow.signal.name}, then {blow.on_death}"
    print(f"{name}: rank {blow.victim} of {work.ranks} at step {blow.step}", flush=True)
    begin = time.monotonic()
    results = tokenyard.launch(
        run_rank,
        ranks=work.ranks,
        processes=True,
        timeout=timeout,
        arena_bytes=ARENA_BYTES,
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
