"""Measures a decode step of a Llama-3.2-1B-shaped model: our megakernel beside torch's CUDA graph.

    python bench/peers/decode.py --ours build/cuda/bench/megakernel_decode
    python bench/peers/decode.py --ours ... --context 512,4000 --compile --out bench/results
    python bench/peers/decode.py --ours ... --sequences 1,2,4,8  # also in batches

BF16, random weights, greedy. A step takes every sequence to its next token; they begin with
neighbouring tokens at the same context, each with a cache of its own. torch's step keeps its
caches, and all of it is one graph.
Both are checked before they are timed: ours by its own program, which runs before torch's steps and
after them; the captured graph by a step that is not, and such steps by the same model in float32,
each sequence by itself. Figures are in us.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from environment import environment
from results_file import write_results
from torch_decoder import Decoder, Shape, Weights, random_weights

FIRST_TOKEN = 77


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--ours", type=Path, metavar="PROGRAM", help="our benchmark; if missing, torch alone"
    )
    parser.add_argument("--context", default="512", help="positions before the first tokens")
    parser.add_argument("--sequences", default="1", help="batch sizes, such as 1,2,4,8")
    parser.add_argument("--tokens", type=int, default=24, help="tokens per run")
    parser.add_argument("--runs", type=int, default=7, help="measured runs")
    parser.add_argument("--compile", action="store_true", help="also torch's step compiled")
    parser.add_argument("--commit", default="", help="commit to record outside a checkout")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write megakernel_torch.json")
    chosen = parser.parse_args()
    weights = random_weights(Shape(), "cuda")
    in_float32 = weights.to(torch.float32)
    rows = []
    asked = itertools.product(numbers(chosen.context), numbers(chosen.sequences))
    for context, sequences in asked:
        run = Run(context, sequences, chosen.tokens, chosen.runs)
        before = by_ours(chosen.ours, run) if chosen.ours else None
        off = rounding_off(weights, in_float32, run)
        # The tolerance allows sums and the vectors between layers to be rounded to BF16.
        if not off < 2**-4:
            print(f"torch's logits are off by {off} of the largest", file=sys.stderr)
            return 1
        ways = [False, True] if chosen.compile else [False]
        theirs = [by_torch(weights, run, compiled) for compiled in ways]
        after = by_ours(chosen.ours, run) if chosen.ours else None
        for peer in theirs:
            rows.append(row_of(run, before, peer, after))
            print(line_of(rows[-1]), flush=True)
    if chosen.out is not None:
        facts = environment(1, chosen.commit)
        chosen.out.mkdir(parents=True, exist_ok=True)
        write_results(chosen.out / "megakernel_torch.json", facts, rows)
    return 0


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


class Run:
    def __init__(self, context: int, sequences: int, tokens: int, runs: int) -> None:
        self.context, self.sequences, self.tokens, self.runs = context, sequences, tokens, runs

    def decoder(self, weights: Weights) -> Decoder:
        """Starts at the end of the context, with caches of random numbers."""
        # Attention kernels prefer rows of masks that are aligned to whole vectors.
        positions_max = (self.context + self.tokens + 16) // 16 * 16
        decoder = Decoder(Shape(), weights, positions_max, self.sequences)
        drawing = torch.Generator("cuda").manual_seed(5)
        for cache in decoder.keys + decoder.values:
            cache.copy_(torch.randn(cache.shape, generator=drawing, device="cuda").bfloat16())
        self.rewind(decoder)
        return decoder

    def rewind(self, decoder: Decoder) -> None:
        decoder.rewind(FIRST_TOKEN, self.context)


def by_ours(program: Path, run: Run) -> dict[str, Any]:
    """Returns the row of the megakernel."""
    case = "decode, megakernel"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ours.json"
        asked = dict(context=run.context, tokens=run.tokens, runs=run.runs, output=path)
        if run.sequences > 1:  # A batch of one is always measured.
            asked["sequences"] = run.sequences
            case = f"decode, {run.sequences} sequences side by side"
        words = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
        subprocess.run([program, *words], check=True, stdout=subprocess.DEVNULL)
        rows = json.loads(path.read_text())["rows"]
    return next(row for row in rows if row["case"] == case)


def off_by(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns the worst sequence's largest difference, relative to the largest expected logit."""
    difference = (logits.float() - expected).abs().amax(-1)
    return float((difference / expected.abs().amax(-1)).max())


def rounding_off(weights: Weights, in_float32: Weights, run: Run) -> float:
    """Returns by how much a few steps' logits differ from float32's for the same tokens."""
    rounding, exact = run.decoder(weights), run.decoder(in_float32)
    steps = []
    for _ in range(4):
        steps.append(off_by(rounding.step(), exact.step()))
        exact.token.copy_(rounding.token)
    return float(torch.tensor(steps).max())  # Unlike Python's max, it propagates NaN.


def by_torch(weights: Weights, run: Run, compiled: bool) -> dict[str, Any]:
    decoder = run.decoder(weights)
    expected = decoder.step().float()
    decoder.capture(compiled)
    run.rewind(decoder)
    off = off_by(decoder.replay(), expected)
    if not off < 2**-5:
        raise RuntimeError(f"the captured graph's logits differ by {off} from a single step's")
    times = []
    for repetition in range(run.runs + 1):
        run.rewind(decoder)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(run.tokens):
            decoder.replay()
        end.record()
        torch.cuda.synchronize()
        if not (decoder.position == run.context + run.tokens).all():
            raise RuntimeError("the graph did not take every step")
        if repetition > 0:  # The first run warms up.
            times.append(begin.elapsed_time(end) * 1e3 / run.tokens)
    ordered = sorted(times)
    how = "compiled, CUDA graph" if compiled else "CUDA graph"
    return dict(
        name=f"torch {torch.__version__}, {how}",
        median=ordered[len(ordered) // 2],
        min=ordered[0],
        max=ordered[-1],
    )


def row_of(
    run: Run,
    before: dict[str, Any] | None,
    theirs: dict[str, Any],
    after: dict[str, Any] | None,
) -> dict[str, Any]:
    case = f"decode, batch {run.sequences}, context {run.context}"
    row: dict[str, Any] = dict(case=case, gpus=1, ranks=1)
    row |= dict(tokens=run.tokens, hidden=Shape().hidden, unit="us")
    if before is not None and after is not None:
        row |= dict(sms=before["sms"], ours=before["ours"], ours_again=after["ours"])
        row |= dict(floor=before["floor"])
    row["peer"] = theirs
    return row


def line_of(row: dict[str, Any]) -> str:
    peer = row["peer"]
    text = f"{row['case']}: {peer['name']} {peer['median']:.1f}"
    text += f" ({peer['min']:.1f} to {peer['max']:.1f})"
    if "ours" not in row:
        return text
    ours, again = row["ours"]["median"], row["ours_again"]["median"]
    return f"{text}, ours {ours:.1f}, again {again:.1f}: {peer['median'] / ours:.2f}x"


if __name__ == "__main__":
    sys.exit(main())
