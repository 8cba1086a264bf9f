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
    from decoder.model import DecodeGraph
    from decoder.reference import Reference
    from decoder.tiles import UNIT_BYTES
    from decoder.weights import Weights, random_weights, read_weights

    import tokenyard
    from tokenyard.megakernel import Megakernel
except ModuleNotFoundError as missing:
    sys.exit(f"The example needs the Python package {missing.name}: pip install '.[demo]'")

STATUS = ("goes on", "stopped", "cache full", "not a number")


@dataclass(frozen=True)
class Job:
    """What all ranks are told."""

    config: Config
    weights: Path | None
    seed: int
    prompts: list[list[int]]
    count: int
    stop: int | None
    workers: int
    schedulers: int
    counters: bool
    trace: Path | None

    @property
    def steps(self) -> int:
        """Until the longest prompt has got its tokens."""
        return max(len(prompt) for prompt in self.prompts) + self.count - 1

    def hands_on_words(self, ranks: int) -> bool:
        """Whether the graph of `DenseDecoder` can do it: a dense model, static places.

        Raises:
            tokenyard.InvalidArgument: it cannot, and no other graph has several sequences.
        """
        if self.counters or self.config.num_local_experts or self.schedulers:
            return False
        try:
            shape = shape_of(self.config)
            blocks = self.workers or shape.blocks_of(2 * self.config.num_key_value_heads, ranks)
            shape.check(blocks, ranks)
        except tokenyard.InvalidArgument:
            if len(self.prompts) > 1:
                raise
            return False
        return True


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
    ran = kernel.run(steps)
    seconds = time.perf_counter() - begun
    sequences = len(job.prompts)
    status = [STATUS[s] for s in model.memory.read(model.status.piece, np.uint32, sequences)]
    if "not a number" in status:
        raise tokenyard.InternalError(
            f"the logits of position {ran - 1} are not numbers: check the weights for NaN and "
            "infinities"
        )
    if "cache full" in status and ran < steps:
        raise tokenyard.InvalidArgument(
            f"positions_max: expected at least {steps + 1} for this prompt and count, got "
            f"{job.config.positions_max}",
            argument="positions_max",
            expected=f"at least {steps + 1}",
            seen=str(job.config.positions_max),
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
        trace = kernel.trace()
        summary = trace.summary()
        name = (
            job.trace.with_stem(f"{job.trace.stem}-{world.rank}") if world.size > 1 else job.trace
        )
        name.write_text(trace.perfetto())
    world.barrier("decode: all ranks have their tokens")
    return Decoded(tokens, status, seconds, summary)


def token_numbers(text: str) -> list[int]:
    return [int(token) for token in text.split(",")]


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
    parser.add_argument(
        "--prompt",
        action="append",
        type=token_numbers,
        metavar="TOKENS",
        help="token numbers (1,2,3); given 2, 4 or 8 times, sequences are decoded side by side",
    )
    parser.add_argument("--tokens", type=int, default=32, metavar="N", help="to decode (32)")
    parser.add_argument(
        "--positions", type=int, metavar="N", help="that the cache has (64, or the config's)"
    )
    parser.add_argument("--stop", type=int, metavar="TOKEN", help="ends at this token")
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="blocks a rank; more of them for a longer cache (host: 4, or a KV head and sequence "
        "each; cuda: as many as there is room for)",
    )
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
        prompts = chosen.prompt or [[1, 2, 3]]
        others = dict(num_local_experts=chosen.experts)
        if chosen.positions is not None:
            others["positions_max"] = chosen.positions
        config = (
            read_config(chosen.config, **others) if chosen.config is not None else Config(**others)
        )
        config.check(chosen.ranks)
        if chosen.weights is not None:
            chosen.weights.open("rb").close()
        if not all(0 <= token < config.vocab_size for prompt in prompts for token in prompt):
            raise ValueError(f"--prompt: tokens are from 0 to {config.vocab_size - 1}")
        if chosen.tokens < 1:
            raise ValueError("--tokens must be at least 1")
        one = len(prompts) == 1
        if not one and (chosen.counters or chosen.experts or chosen.schedulers):
            raise ValueError("several sequences go with a dense model of static places")
        if len(prompts) not in (1, 2, 4, 8):
            raise ValueError("--prompt is given 1, 2, 4 or 8 times")
    except (OSError, ValueError) as error:
        parser.error(str(error))
    workers = chosen.workers
    if workers is None:
        dense = not (chosen.experts or chosen.counters or chosen.schedulers)
        heads = config.num_key_value_heads // chosen.ranks * len(prompts)
        workers = max(4, heads) if dense else 4
        if dense and chosen.device == "cuda":
            workers = 0
    job = Job(
        config=config,
        weights=chosen.weights,
        seed=chosen.seed,
        prompts=prompts,
        count=chosen.tokens,
        stop=chosen.stop,
        workers=workers,
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
    for prompt, tokens in zip(job.prompts, first.tokens, strict=True):
        print("tokens:", " ".join(str(token) for token in tokens[len(prompt) :]))
    steps = max(len(tokens) for tokens in first.tokens) - 1
    rate = steps / first.seconds
    how = ", ".join(first.status)
    print(f"{how}; {steps} steps in {first.seconds:.2f} s: {rate:.1f} a second")
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
        sys.exit("Interrupted.")
    except tokenyard.Error as error:
        sys.exit(f"{type(error).__name__}: {error}")
