"""Decodes tokens with a Llama-shaped model whose every step is one graph of tasks.

One persistent kernel runs the graph, a token an iteration, until it meets the stop token. Without
weights the model is drawn from a seed, and every token is checked against NumPy's. Several ranks
share the model (tensor parallel) and find the same tokens.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# Every rank is a thread or a process of its own: threads that BLAS adds would only be in the way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

try:
    import numpy as np
    from decoder.config import Config, read_config
    from decoder.dense import DenseGraph, shape_of
    from decoder.model import UNIT_BYTES, DecodeGraph
    from decoder.reference import Reference
    from decoder.weights import Weights, random_weights, read_weights

    import tokenyard
    from tokenyard.megakernel import Megakernel
except ModuleNotFoundError as missing:
    sys.exit(f"The example needs the Python package {missing.name}: pip install 'tokenyard[demo]'")

STATUS = ("goes on", "stopped", "cache full", "not a number")


@dataclass(frozen=True)
class Job:
    """What all ranks are told."""

    config: Config
    weights: Path | None
    seed: int
    prompt: list[int]
    count: int
    stop: int | None
    workers: int
    schedulers: int
    counters: bool
    trace: Path | None

    def hands_on_words(self, ranks: int) -> bool:
        """Whether the graph of `DenseDecoder` can do it: a dense model, static places."""
        if self.counters or self.config.num_local_experts or self.schedulers:
            return False
        try:
            shape = shape_of(self.config)
            blocks = self.workers or shape.blocks_of(2 * self.config.num_key_value_heads, ranks)
            shape.check(blocks, ranks)
        except tokenyard.InvalidArgument:
            return False
        return True


@dataclass(frozen=True)
class Decoded:
    """What one rank found."""

    tokens: list[int]
    status: str
    seconds: float
    summary: str


def weights_of(job: Job) -> Weights:
    if job.weights is not None:
        return read_weights(job.weights, job.config)
    return random_weights(job.config, job.seed)


def decode(world: tokenyard.World, job: Job) -> Decoded:
    """One rank's part."""
    steps = len(job.prompt) + job.count - 1
    weights = weights_of(job)
    records = 1 << 14 if job.trace else 0
    model: DecodeGraph | DenseGraph
    if job.hands_on_words(world.size):
        model = DenseGraph(
            world, job.config, weights, prompt=job.prompt, stop=job.stop, blocks=job.workers
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
            prompt=job.prompt,
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
    ran = kernel.run(steps)
    seconds = time.perf_counter() - begun
    status = STATUS[int(model.memory.read(model.status.piece, np.uint32, 1)[0])]
    if status == "not a number":
        raise tokenyard.InternalError(
            f"the logits of position {ran - 1} are not numbers: check the weights for NaN and "
            "infinities"
        )
    if status == "cache full" and ran < steps:
        raise tokenyard.InvalidArgument(
            f"positions_max: expected at least {steps + 1} for this prompt and count, got "
            f"{job.config.positions_max}",
            argument="positions_max",
            expected=f"at least {steps + 1}",
            seen=str(job.config.positions_max),
            rank=None,
        )
    tokens = model.memory.read(model.tokens.piece, np.uint32, ran + 1).tolist()
    summary = ""
    if job.trace is not None:
        trace = kernel.trace()
        summary = trace.summary()
        name = (
            job.trace.with_stem(f"{job.trace.stem}-{world.rank}") if world.size > 1 else job.trace
        )
        name.write_text(trace.perfetto())
    world.barrier("decode: all ranks have their tokens")
    return Decoded(tokens, status, seconds, summary)


def parse(arguments: list[str] | None) -> tuple[argparse.Namespace, Job]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="tensor parallel (1)")
    parser.add_argument("--processes", action="store_true", help="a process a rank, not a thread")
    parser.add_argument("--device", choices=("host", "cuda"), default="host", help="(host)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a Llama config.json")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="safetensors (random without)")
    parser.add_argument("--seed", type=int, default=1, help="of random weights (1)")
    parser.add_argument("--experts", type=int, default=0, metavar="N", help="of an MoE (0: dense)")
    parser.add_argument("--prompt", default="1,2,3", help="token numbers (1,2,3)")
    parser.add_argument("--tokens", type=int, default=32, metavar="N", help="to decode (32)")
    parser.add_argument("--stop", type=int, metavar="TOKEN", help="ends at this token")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="blocks a rank (4)")
    parser.add_argument(
        "--schedulers", type=int, default=0, metavar="N", help="give tasks out as they run (0: no)"
    )
    parser.add_argument(
        "--counters",
        action="store_true",
        help="stages wait for counters, and ranks copy their sums and add them up",
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="for ui.perfetto.dev")
    parser.add_argument("--no-check", action="store_true", help="do not compare with NumPy")
    chosen = parser.parse_args(arguments)
    try:
        prompt = [int(token) for token in chosen.prompt.split(",")]
        if chosen.config is not None:
            config = read_config(chosen.config, num_local_experts=chosen.experts)
        else:
            config = Config(num_local_experts=chosen.experts)
        config.check(chosen.ranks)
        if not all(0 <= token < config.vocab_size for token in prompt):
            raise ValueError(f"--prompt: tokens are from 0 to {config.vocab_size - 1}")
        if chosen.tokens < 1:
            raise ValueError("--tokens must be at least 1")
    except (OSError, ValueError) as error:
        parser.error(str(error))
    job = Job(
        config=config,
        weights=chosen.weights,
        seed=chosen.seed,
        prompt=prompt,
        count=chosen.tokens,
        stop=chosen.stop,
        workers=chosen.workers,
        schedulers=chosen.schedulers,
        counters=chosen.counters,
        trace=chosen.trace,
    )
    return chosen, job


def main(arguments: list[str] | None = None) -> int:
    chosen, job = parse(arguments)
    results = tokenyard.launch(
        decode,
        ranks=chosen.ranks,
        processes=chosen.processes,
        device=chosen.device,
        args=(job,),
    )
    first = results[0]
    decoded = first.tokens[len(job.prompt) :]
    print("tokens:", " ".join(str(token) for token in decoded))
    steps = len(first.tokens) - 1
    rate = steps / first.seconds
    print(f"{first.status}; {steps} steps in {first.seconds:.2f} s: {rate:.1f} a second")
    if first.summary:
        print(first.summary, end="")
    ok = all(result.tokens == first.tokens for result in results)
    if not ok:
        print("NOT the same tokens on all ranks")
    if not chosen.no_check:
        rounds = job.hands_on_words(chosen.ranks)
        reference = Reference(job.config, weights_of(job), rounds_inner=rounds)
        expected = reference.decode(job.prompt, job.count, job.stop)
        ok = ok and expected == first.tokens
        print("NumPy finds", "the same" if expected == first.tokens else f"others: {expected}")
    return 0 if ok else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("Interrupted.")
    except tokenyard.Error as error:
        sys.exit(f"{type(error).__name__}: {error}")
