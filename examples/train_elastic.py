"""Trains a small network on a text while its ranks are killed and replaced.

Four processes share the work of each step. Twice over: once undisturbed, once with ranks killed,
rank 0 too, and two at a time. New processes take their places, the step that was under way is done
again, and the loss is the same at every step, to the last bit. Leaves out/elastic/loss.png and
out/elastic/report.json; the exit status is 0 only if the curves are equal.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

# Every rank is a process of its own: threads that BLAS adds would only be in the way. Read when
# NumPy is imported, here and in the ranks.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

try:
    from elastic_training.letters import Letters, read_letters
    from elastic_training.loss_plot import plot_losses
    from elastic_training.model import Shape
    from elastic_training.supervisor import Kill, Run, Supervisor

    import tokenyard
except ModuleNotFoundError as missing:
    sys.exit(f"The example needs the Python package {missing.name}: pip install '.[demo]'")

SHIPPED_TEXT = Path(__file__).parent / "data" / "alice.txt"


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
    if chosen.steps < 10:
        parser.error("--steps must be at least 10")
    return chosen


def kills_of(ranks: int, steps: int) -> list[Kill]:
    """Some rank, rank 0, and as many at once as may die: with half of them gone the store, which
    is the witness, lets the other half go on."""
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


def main(arguments: list[str] | None = None) -> int:
    chosen = parse(arguments)
    try:
        letters = read_letters(chosen.text)
        chosen.out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
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


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("Interrupted.")
    except (tokenyard.Error, RuntimeError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
