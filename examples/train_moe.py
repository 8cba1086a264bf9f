"""Trains a small mixture-of-experts language model, its experts spread over the ranks.

Bytes of a text, two transformer blocks, sixteen experts a block, two for each byte. First one rank
trains it alone for a while, with all experts; then the ranks do it together, each with its part of
the experts and its share of every step. The losses must be the same but for rounding. Leaves
out/train_moe/loss.png and report.json; the exit status is 0 only if they are.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Every rank is a process of its own: threads that BLAS adds would only be in the way. Read when
# NumPy and torch are imported, here and in the ranks.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

try:
    import torch
    from moe_training.loss_plot import plot_losses
    from moe_training.model import Shape
    from moe_training.rank import train
    from moe_training.text import Text, read_text

    import tokenyard
except ModuleNotFoundError as missing:
    sys.exit(f"The example needs {missing.name}: pip install torch '.[demo]'")

SHIPPED_TEXT = Path(__file__).parent / "data" / "alice.txt"
COMPARED = 50
TOLERANCE = 1e-5
"""Largest relative difference of losses that rounding explains: sums run in another order."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="processes (4)")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="(200)")
    parser.add_argument("--compared", type=int, metavar="N", help="alone too (50, or all)")
    parser.add_argument("--device", choices=("host", "cuda"), default="host", help="(host)")
    parser.add_argument("--text", type=Path, default=SHIPPED_TEXT, metavar="FILE", help="any text")
    parser.add_argument("--out", type=Path, default=Path("out/train_moe"), metavar="FOLDER")
    chosen = parser.parse_args(arguments)
    if chosen.ranks not in (1, 2, 4, 8, 16):
        parser.error("--ranks must be 1, 2, 4, 8 or 16, to share 16 experts and 16 windows")
    if chosen.device == "cuda" and torch.cuda.device_count() < chosen.ranks:
        gpus = torch.cuda.device_count()
        parser.error(f"--ranks: a process needs a GPU of its own, and here are {gpus}")
    if chosen.compared is None:
        chosen.compared = min(COMPARED, chosen.steps)
    if chosen.steps < 1 or not 0 <= chosen.compared <= chosen.steps:
        parser.error("--steps must be at least 1, and --compared no more than that")
    return chosen


def losses_of(ranks: int, steps: int, device: str, text: Text, shape: Shape) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        job: dict[str, Any] = dict(store=f"file:{folder}/store", secret=secrets.token_hex(16))
        every = tokenyard.launch(
            train, ranks, processes=True, device=device, args=(job, text, shape, steps)
        )
    return every[0]


def main(arguments: list[str] | None = None) -> int:
    chosen = parse(arguments)
    shape = Shape()
    try:
        text = read_text(chosen.text, shape.window)
        chosen.out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    alone: list[float] = []
    if chosen.compared:
        print(f"{chosen.compared} steps on one rank ...", flush=True)
        alone = losses_of(1, chosen.compared, chosen.device, text, shape)
    print(f"{chosen.steps} steps on {chosen.ranks} ranks ...", flush=True)
    begin = time.monotonic()
    losses = losses_of(chosen.ranks, chosen.steps, chosen.device, text, shape)
    seconds = time.monotonic() - begin
    apart = max((abs(a - b) / b for a, b in zip(losses, alone, strict=False)), default=0.0)
    ok = apart <= TOLERANCE
    print(f"  {seconds:.1f} s, loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(f"  {'the same' if ok else 'NOT the same'} as on one rank: at most {apart:.1e} apart")

    plot_losses(chosen.out / "loss.png", losses, alone, chosen.ranks)
    report = dict(
        ok=ok,
        ranks=chosen.ranks,
        losses=losses,
        losses_alone=alone,
        largest_difference=apart,
        tolerance=TOLERANCE,
        seconds=seconds,
    )
    (chosen.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"See {chosen.out}/loss.png and report.json.")
    return 0 if ok else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("Interrupted.")
    except tokenyard.Error as error:
        sys.exit(f"{type(error).__name__}: {error}")
