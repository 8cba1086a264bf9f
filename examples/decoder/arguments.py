"""What the example is asked to do, from its command line."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tokenyard

from .config import Config, read_config
from .dense import shape_of
from .tensors import first_file


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

    @property
    def positions_needed(self) -> int:
        """In the cache, unless a stop token comes before."""
        page = self.config.page_tokens
        return -(-self.steps // page) * page

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


def at_least(smallest: int) -> Callable[[str], int]:
    """Of an option: a whole number, no smaller."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = smallest - 1
        if not smallest <= value < 2**31:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {smallest} to {2**31 - 1}"
            )
        return value

    return number


def token_numbers(text: str) -> list[int]:
    return [at_least(0)(token) for token in text.split(",")]


def parse(description: str, arguments: list[str] | None) -> tuple[argparse.Namespace, Job]:
    """What was asked; ends the program with a sentence where that cannot be."""
    parser = _parser(description)
    chosen = parser.parse_args(arguments)
    try:
        config = _config(chosen)
        prompts = chosen.prompt or [[1, 2, 3]]
        _check(chosen, config, prompts)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    job = Job(
        config=config,
        weights=chosen.weights,
        seed=chosen.seed,
        prompts=prompts,
        count=chosen.tokens,
        stop=chosen.stop,
        workers=_workers(chosen, config, prompts),
        schedulers=chosen.schedulers,
        counters=chosen.counters,
        trace=chosen.trace,
    )
    if job.stop is None and job.positions_needed > config.positions_max:
        parser.error(
            f"--positions: {job.count} tokens after this prompt need {job.positions_needed}, not "
            f"{config.positions_max}"
        )
    return chosen, job


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--ranks", type=at_least(1), default=1, metavar="N", help="tensor parallel (1)"
    )
    parser.add_argument("--processes", action="store_true", help="a process a rank, not a thread")
    parser.add_argument("--device", choices=("host", "cuda"), default="host", help="(host)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a Llama config.json")
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="PATH",
        help="safetensors: a file, or a folder with one or with an index of several (random "
        "without)",
    )
    parser.add_argument("--seed", type=at_least(0), default=1, help="of random weights (1)")
    parser.add_argument(
        "--experts", type=at_least(0), metavar="N", help="of an MoE (0: dense; or the config's)"
    )
    parser.add_argument(
        "--prompt",
        action="append",
        type=token_numbers,
        metavar="TOKENS",
        help="token numbers (1,2,3); given 2, 4 or 8 times, sequences are decoded side by side",
    )
    parser.add_argument(
        "--tokens", type=at_least(1), default=32, metavar="N", help="to decode (32)"
    )
    parser.add_argument(
        "--positions", type=at_least(1), default=64, metavar="N", help="that the cache has (64)"
    )
    parser.add_argument("--stop", type=at_least(0), metavar="TOKEN", help="ends at this token")
    parser.add_argument(
        "--workers",
        type=at_least(1),
        metavar="N",
        help="blocks a rank; more of them for a longer cache (host: 4, or a KV head and sequence "
        "each; cuda: as many as there is room for)",
    )
    parser.add_argument(
        "--schedulers",
        type=at_least(0),
        default=0,
        metavar="N",
        help="give tasks out as they run (0: no)",
    )
    parser.add_argument(
        "--counters",
        action="store_true",
        help="stages wait for counters, and ranks copy their sums and add them up",
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="for ui.perfetto.dev")
    parser.add_argument("--no-check", action="store_true", help="do not compare with NumPy")
    return parser


def _config(chosen: argparse.Namespace) -> Config:
    others = dict(positions_max=chosen.positions)
    if chosen.experts is not None:
        others["num_local_experts"] = chosen.experts
    return Config(**others) if chosen.config is None else read_config(chosen.config, **others)


def _check(chosen: argparse.Namespace, config: Config, prompts: list[list[int]]) -> None:
    """Raises ValueError or OSError saying what cannot be."""
    config.check(chosen.ranks)
    if chosen.weights is not None:
        first_file(chosen.weights).open("rb").close()
        if importlib.util.find_spec("safetensors") is None:
            raise ValueError(
                "--weights needs the Python package safetensors: pip install safetensors"
            )
    tokens = [token for prompt in prompts for token in prompt]
    if any(token >= config.vocab_size for token in tokens):
        raise ValueError(f"--prompt: tokens are from 0 to {config.vocab_size - 1}")
    if chosen.stop is not None and chosen.stop >= config.vocab_size:
        raise ValueError(f"--stop: tokens are from 0 to {config.vocab_size - 1}")
    longest = max(len(prompt) for prompt in prompts)
    if longest > config.positions_max:
        raise ValueError(
            f"--prompt: {longest} tokens do not fit in the cache's {config.positions_max} "
            "positions; --positions gives it more"
        )
    if len(prompts) not in (1, 2, 4, 8):
        raise ValueError("--prompt is given 1, 2, 4 or 8 times")
    if len(prompts) > 1 and not _is_dense_and_static(chosen, config):
        raise ValueError("several sequences go with a dense model of static places")
    if chosen.trace is not None and not chosen.trace.parent.is_dir():
        raise ValueError(f"--trace: there is no folder {chosen.trace.parent}")
    if chosen.trace is not None and chosen.trace.is_dir():
        raise ValueError(f"--trace: {chosen.trace} is a folder")


def _is_dense_and_static(chosen: argparse.Namespace, config: Config) -> bool:
    return not (config.num_local_experts or chosen.counters or chosen.schedulers)


def _workers(chosen: argparse.Namespace, config: Config, prompts: list[list[int]]) -> int:
    if chosen.workers is not None:
        return chosen.workers
    if not _is_dense_and_static(chosen, config):
        return 4
    if chosen.device == "cuda":
        return 0
    return max(4, config.num_key_value_heads // chosen.ranks * len(prompts))
