"""Decodes tokens with a Llama-shaped model whose every step is one graph of tasks.

One persistent kernel runs the graph, a token an iteration, until it meets the stop token. Without
weights the model is drawn from a seed, and every token is checked against NumPy's. Several ranks
share the model (tensor parallel) and find the same tokens.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

# Every rank is a thread or a process of its own: threads that BLAS adds would only be in the way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

try:
    import numpy as np
    from decoder.arguments import Job, parse
    from decoder.dense import DenseGraph
    from decoder.model import DecodeGraph
    from decoder.progress import Progress, fresh_line
    from decoder.reference import Reference
    from decoder.tensors import WeightsError
    from decoder.tiles import UNIT_BYTES
    from decoder.weights import Weights, random_weights, read_weights

    import tokenyard
    from tokenyard.megakernel import Megakernel, TaskTimeout, perfetto
except ModuleNotFoundError as missing:
    sys.exit(f"The example needs the Python package {missing.name}: pip install '.[demo]'")

STATUS = ("goes on", "stopped", "cache full", "not a number")


@dataclass(frozen=True)
class Decoded:
    """What one rank found."""

    tokens: list[list[int]]
    """By sequence, its prompt included."""
    status: list[str]
    seconds: float
    summary: str


def weights_of(job: Job) -> Weights:
    if job.weights is not None:
        return read_weights(job.weights, job.config)
    return random_weights(job.config, job.seed)


def until(tokens: list[int], begin: int, stop: int | None) -> list[int]:
    """Up to the first stop token from `begin` on: a sequence that has ended gets no more."""
    return tokens[: tokens.index(stop, begin) + 1] if stop in tokens[begin:] else tokens


def run(kernel: Megakernel, steps: int, progress: Progress | None) -> int:
    """Runs so many steps, or until the loop ends; returns how many."""
    kernel.start()
    kernel.feed(steps)
    done = 0
    while progress is not None and done < steps:
        ended = kernel.wait(done + 1)
        progress.show(ended)
        if ended == done:
            break
        done = ended
    ran = kernel.stop()
    if progress is not None:
        progress.clear()
    return ran


def decode(world: tokenyard.World, job: Job) -> Decoded:
    """One rank's part."""
    steps = job.steps
    weights = weights_of(job)
    records = 1 << 14 if job.trace else 0
    model: DecodeGraph | DenseGraph
    if job.hands_on_words(world.size):
        model = DenseGraph(
            world, job.config, weights, prompts=job.prompts, stop=job.stop, blocks=job.workers
        )
        kernel = Megakernel(
            world,
            model.graph,
            workers=model.decoder.blocks,
            unit_bytes=model.decoder.unit_bytes,
            trace_records=records,
        )
    else:
        model = DecodeGraph(
            world,
            job.config,
            weights,
            prompt=job.prompts[0],
            stop=job.stop,
            tiles=max(job.workers, 1),
        )
        kernel = Megakernel(
            world,
            model.graph,
            workers=job.workers,
            unit_bytes=UNIT_BYTES,
            schedulers=job.schedulers,
            trace_records=records,
        )
    begun = time.perf_counter()
    ran = run(kernel, steps, Progress(steps, len(job.prompts)) if world.rank == 0 else None)
    seconds = time.perf_counter() - begun
    sequences = len(job.prompts)
    status = [STATUS[s] for s in model.memory.read(model.status.piece, np.uint32, sequences)]
    if "not a number" in status:
        raise tokenyard.InternalError(
            f"the logits of position {ran - 1} are not numbers: check the weights for NaN and "
            "infinities"
        )
    if "cache full" in status and ran < steps:  # A stop token might have come before.
        expected, seen = f"at least {job.positions_needed}", str(job.config.positions_max)
        raise tokenyard.InvalidArgument(
            f"--positions: expected {expected} for this prompt and count, got {seen}",
            argument="positions",
            expected=expected,
            seen=seen,
            rank=None,
        )
    positions = job.config.positions_max + 1
    decided = model.memory.read(model.tokens.piece, np.uint32, sequences * positions)
    tokens = [
        until(row[: ran + 1].tolist(), len(prompt), job.stop)
        for row, prompt in zip(decided.reshape(sequences, -1), job.prompts, strict=True)
    ]
    summary = ""
    if job.trace is not None:
        traces = kernel.traces()
        summary = traces[world.rank].summary()
        if world.rank == 0:
            job.trace.write_text(perfetto(traces))
    world.barrier("decode: all ranks have their tokens")
    return Decoded(tokens, status, seconds, summary)


def main(arguments: list[str] | None = None) -> int:
    chosen, job = parse(__doc__ or "", arguments)
    results = tokenyard.launch(
        decode,
        ranks=chosen.ranks,
        processes=chosen.processes,
        device=chosen.device,
        args=(job,),
    )
    first = results[0]
    for prompt, tokens in zip(job.prompts, first.tokens, strict=True):
        print("tokens:", " ".join(str(token) for token in tokens[len(prompt) :]))
    steps = [len(tokens) - 1 for tokens in first.tokens]
    rate = sum(steps) / first.seconds
    how = ", ".join(first.status)
    print(f"{how}; {max(steps)} steps in {first.seconds:.2f} s: {rate:.1f} tokens/s")
    if first.summary:
        print(first.summary, end="")
    ok = all(result.tokens == first.tokens for result in results)
    if not ok:
        print("NOT the same tokens on all ranks")
    if not chosen.no_check:
        rounds = job.hands_on_words(chosen.ranks)
        weights = weights_of(job)
        expected = [
            Reference(job.config, weights, rounds_inner=rounds).decode(
                prompt, job.steps + 1 - len(prompt), job.stop
            )
            for prompt in job.prompts
        ]
        ok = ok and expected == first.tokens
        print("NumPy finds", "the same" if expected == first.tokens else f"others: {expected}")
    return 0 if ok else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(f"{fresh_line()}Interrupted.")
    except TaskTimeout as error:
        sys.exit(f"{type(error).__name__}: {error}\n{error.dump}")
    except (tokenyard.Error, WeightsError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
