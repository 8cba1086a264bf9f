"""Decodes on all ranks, and compares with NumPy."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

import numpy as np

import tokenyard
from tokenyard.megakernel import Megakernel, TaskTimeout, perfetto

from .check import check
from .dense import DenseGraph
from .job import Job, job_of
from .model import DecodeGraph
from .progress import Progress, fresh_line
from .random_model import random_tensors
from .reference import Reference, stored
from .tensors import Drawn, Tensors, first_file
from .tiles import UNIT_BYTES
from .weights import Weights, read_weights

STATUS = ("goes on", "stopped", "cache full", "not a number")


@dataclass(frozen=True)
class Decoded:
    """Results of one rank."""

    tokens: list[list[int]]
    """Tokens of each sequence, its prompt included."""
    status: list[str]
    seconds: float
    summary: str
    is_short: bool
    """Whether the cache was full before all tokens were decoded."""


def weights_of(job: Job, *, tells: bool) -> Weights:
    """Reads the weights; with `tells`, prints what BF16 cannot represent exactly."""
    if job.weights is None:
        return read_weights(Drawn(random_tensors(job.config, job.seed)), job.config)
    tensors = Tensors(job.weights)
    weights = read_weights(tensors, job.config)
    for dtype, count in sorted(tensors.rounded.items()) if tells else ():
        what = f"{count} tensor{'s' if count > 1 else ''} of {dtype}"
        print(f"{tensors.said_by}: {what} rounded to BF16", file=sys.stderr)
    return weights


def reference_of(job: Job) -> Reference:
    """Makes the reference, which reads the tensors itself."""
    if job.weights is None:
        return Reference(job.said, random_tensors(job.config, job.seed).get)
    return Reference(job.said, stored(first_file(job.weights)))


def until(tokens: list[int], begin: int, stops: list[int]) -> list[int]:
    """Returns the tokens up to the first stop token at or after `begin`."""
    for at in range(begin, len(tokens)):
        if tokens[at] in stops:
            return tokens[: at + 1]
    return tokens


def run_steps(kernel: Megakernel, steps: int, progress: Progress | None) -> int:
    """Runs up to `steps` steps, fewer if the loop ends; returns how many ran."""
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
    """Decodes on one rank."""
    steps = job.steps
    weights = weights_of(job, tells=world.rank == 0)
    records = 1 << 14 if job.trace else 0
    model: DecodeGraph | DenseGraph
    if job.hands_on_words(world.size):
        model = DenseGraph(
            world, job.config, weights, prompts=job.prompts, stops=job.stops, blocks=job.workers
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
            stops=job.stops,
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
    ran = run_steps(kernel, steps, Progress(steps, len(job.prompts)) if world.rank == 0 else None)
    seconds = time.perf_counter() - begun
    sequences = len(job.prompts)
    status = [STATUS[s] for s in model.memory.read(model.status.piece, np.uint32, sequences)]
    if "not a number" in status:
        raise tokenyard.InternalError(
            f"the logits of position {ran - 1} are not numbers: check the weights for NaN and "
            "infinities"
        )
    positions = job.config.positions_max + 1
    decided = model.memory.read(model.tokens.piece, np.uint32, sequences * positions)
    tokens = [
        until(row[: ran + 1].tolist(), len(prompt), job.stops)
        for row, prompt in zip(decided.reshape(sequences, -1), job.prompts, strict=True)
    ]
    summary = ""
    if job.trace is not None:
        traces = kernel.traces()
        summary = traces[world.rank].summary()
        if world.rank == 0:
            job.trace.write_text(perfetto(traces))
    world.barrier("decode: all ranks have their tokens")
    return Decoded(tokens, status, seconds, summary, "cache full" in status and ran < steps)


def run(chosen: argparse.Namespace) -> int:
    """Decodes as the arguments say; returns the exit status."""
    job = job_of(chosen)
    try:
        results = tokenyard.launch(
            decode,
            ranks=chosen.ranks,
            processes=chosen.processes,
            device=chosen.device,
            hosts=chosen.hosts,
            args=(job,),
        )
    except KeyboardInterrupt:
        print(fresh_line(), end="", file=sys.stderr)
        raise
    except TaskTimeout as error:
        print(error.dump, file=sys.stderr)
        raise
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
        reference = reference_of(job)
        stops = reference.stop_tokens() if chosen.stop is None else chosen.stop
        most = min(job.steps, job.config.positions_max) + 1
        verdict = check(reference, job.prompts, first.tokens, stops, most)
        ok = ok and not verdict.wrong
        print(verdict)
    if first.is_short:
        print(
            f"--positions: the cache of {job.config.positions_max} was full before a stop token "
            f"came; {job.count} tokens after this prompt take {job.positions_needed}",
            file=sys.stderr,
        )
        ok = False
    return 0 if ok else 1
