"""Trains twice, undisturbed and with ranks killed, and compares both runs."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from program import Refused

from .letters import Letters, read_letters
from .loss_plot import plot_losses
from .model import Shape
from .supervisor import Kill, Run, Supervisor


def kills_of(ranks: int, steps: int) -> list[Kill]:
    """Returns kills of one rank, of rank 0, and of as many ranks at once as may die.

    With half of the ranks gone, the store, as the witness, lets the other half continue.
    """
    half = tuple(range(1, ranks, 2)) if ranks % 2 == 0 else (1,)
    return [
        Kill(steps // 5, (ranks // 2,)),
        Kill(2 * steps // 5, (0,)),
        Kill(3 * steps // 5, half),
        Kill(4 * steps // 5, (0, ranks - 1) if ranks > 3 else (0,)),
    ]


def train(ranks: int, steps: int, letters: Letters, kills: list[Kill]) -> Run:
    shape = Shape(letters=len(letters.alphabet))
    with tempfile.TemporaryDirectory() as folder:
        return Supervisor(Path(folder), ranks, steps, letters, shape).run(kills)


def run(chosen: argparse.Namespace) -> int:
    """Trains as the arguments say; returns the exit status."""
    try:
        letters = read_letters(chosen.text)
    except (OSError, ValueError) as error:
        raise Refused(f"--text: {error}") from None
    print(f"{chosen.steps} steps on {chosen.ranks} ranks, undisturbed ...", flush=True)
    calm = train(chosen.ranks, chosen.steps, letters, [])
    print(f"  {calm.seconds:.1f} s, loss {calm.losses[0]:.3f} -> {calm.losses[-1]:.3f}")
    print("The same, with ranks killed and replaced ...", flush=True)
    struck = train(chosen.ranks, chosen.steps, letters, kills_of(chosen.ranks, chosen.steps))
    for step, ranks, seconds in struck.kills:
        print(f"  after step {step}: killed {list(ranks)}; all at work again in {seconds:.2f} s")
    equal = calm.losses == struck.losses
    print(
        f"  {struck.seconds:.1f} s; the curves are {'equal, bit for bit' if equal else 'NOT equal'}"
    )

    plot_losses(chosen.out / "loss.png", calm, struck)
    report = dict(
        ok=equal,
        ranks=chosen.ranks,
        steps=chosen.steps,
        losses=struck.losses,
        kills=[
            dict(step=step, ranks=list(ranks), seconds=seconds)
            for step, ranks, seconds in struck.kills
        ],
    )
    (chosen.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"See {chosen.out}/loss.png and report.json.")
    return 0 if equal else 1
