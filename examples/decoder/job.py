"""The job of the ranks, from the command line and the files that it names."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import program
from program import Refused

import tokenyard

from .config import STOP_TOKENS_MAX, Config, config_of, said_in, toy
from .dense import shape_of
from .tensors import Tensors, first_file
from .weights import check_tensors

WORKERS = 4
"""Blocks per rank where neither the user nor `DenseDecoder` chooses."""


@dataclass(frozen=True)
class Job:
    """The arguments of all ranks."""

    said: dict[str, Any]
    """Contents of the config.json."""
    config: Config
    weights: Path | None
    seed: int
    prompts: list[list[int]]
    count: int
    stops: list[int]
    workers: int
    schedulers: int
    counters: bool
    trace: Path | None

    @property
    def steps(self) -> int:
        """Steps until the longest prompt has all its tokens."""
        return max(len(prompt) for prompt in self.prompts) + self.count - 1

    @property
    def positions_needed(self) -> int:
        """Positions of the cache that the job needs, unless a stop token comes earlier."""
        page = self.config.page_tokens
        return -(-self.steps // page) * page

    def hands_on_words(self, ranks: int) -> bool:
        """Returns whether `DenseDecoder` supports the job: a dense model, assigned when compiled.

        Raises:
            tokenyard.InvalidArgument: it does not, and the job has several sequences, which no
                other graph supports.
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


def job_of(chosen: argparse.Namespace) -> Job:
    """Returns the job of a command line. Raises Refused, before any rank starts, if it is wrong."""
    try:
        said, config = _config(chosen)
        prompts = chosen.prompt or [[1, 2, 3]]
        _check(chosen, config, prompts)
    except OSError as error:
        raise Refused(f"{error.filename}: {error.strerror}") from None
    job = Job(
        said=said,
        config=config,
        weights=chosen.weights,
        seed=chosen.seed,
        prompts=prompts,
        count=chosen.tokens,
        stops=list(config.eos_token_id) if chosen.stop is None else chosen.stop,
        workers=_workers(chosen, config, prompts),
        schedulers=chosen.schedulers,
        counters=chosen.counters,
        trace=chosen.trace,
    )
    if not job.stops and job.positions_needed > config.positions_max:
        raise Refused(
            f"--positions: {job.count} tokens after this prompt need {job.positions_needed}, not "
            f"{config.positions_max}"
        )
    if not job.hands_on_words(chosen.ranks):
        config.check_tiles(chosen.ranks)
        # Nobody chooses their number, which is that of a stage's tasks, for the other graph.
        job = replace(job, workers=job.workers or WORKERS)
    return job


def _config(chosen: argparse.Namespace) -> tuple[dict[str, Any], Config]:
    """Returns the contents of the config and the shape it describes."""
    path = chosen.config
    if path is None and chosen.weights is not None:
        first = first_file(chosen.weights)
        first.open("rb").close()
        path = first.parent / "config.json"
        if not path.is_file():
            raise Refused(f"--weights: there is no {path} beside them, so --config is needed")
        print(f"--config: {path}", file=sys.stderr)
    if path is None:
        said, where = toy(chosen.experts or 0), "the tiny model"
    elif chosen.experts is not None:
        raise Refused("--experts is for the tiny model; a config has its own number")
    else:
        said, where = said_in(path), str(path)
    return said, config_of(said, where, positions_max=chosen.positions)


def _check(chosen: argparse.Namespace, config: Config, prompts: list[list[int]]) -> None:
    """Raises Refused for options that cannot work together."""
    config.check(chosen.ranks)
    if chosen.ranks % chosen.hosts:
        raise Refused(f"--hosts: a divisor of the {chosen.ranks} ranks, not {chosen.hosts}")
    if chosen.weights is not None:
        first_file(chosen.weights).open("rb").close()
        if importlib.util.find_spec("safetensors") is None:
            raise Refused("--weights needs the Python package safetensors: pip install safetensors")
        check_tensors(Tensors(chosen.weights), config)
    tokens = [token for prompt in prompts for token in prompt]
    if any(token >= config.vocab_size for token in tokens):
        raise Refused(f"--prompt: tokens are from 0 to {config.vocab_size - 1}")
    stops = chosen.stop or []
    if any(token >= config.vocab_size for token in stops):
        raise Refused(f"--stop: tokens are from 0 to {config.vocab_size - 1}")
    if len(stops) > STOP_TOKENS_MAX:
        raise Refused(f"--stop: up to {STOP_TOKENS_MAX} tokens, not {len(stops)}")
    longest = max(len(prompt) for prompt in prompts)
    if longest > config.positions_max:
        raise Refused(
            f"--prompt: {longest} tokens do not fit in the cache's {config.positions_max} "
            "positions; --positions gives it more"
        )
    if len(prompts) not in (1, 2, 4, 8):
        raise Refused("--prompt is given 1, 2, 4 or 8 times")
    if len(prompts) > 1 and not _is_dense_and_static(chosen, config):
        raise Refused("several sequences need a dense model, without --schedulers or --counters")
    program.require_memory(
        bytes_needed(config, chosen.ranks, len(prompts)),
        f"--ranks {chosen.ranks}, --positions {config.positions_max} and the sizes of the model",
    )
    if chosen.trace is not None and not chosen.trace.parent.is_dir():
        raise Refused(f"--trace: there is no folder {chosen.trace.parent}")
    if chosen.trace is not None and chosen.trace.is_dir():
        raise Refused(f"--trace: {chosen.trace} is a folder")


def bytes_needed(config: Config, ranks: int, sequences: int) -> int:
    """Returns a lower bound of the memory that a job takes.

    Each rank holds all weights while it takes its part, and all ranks together hold the parts and
    the caches.
    """
    hidden, layers = config.hidden_size, config.num_hidden_layers
    heads = config.num_attention_heads + config.num_key_value_heads
    experts = config.num_local_experts
    inner = experts * config.moe_intermediate_size if experts else config.intermediate_size
    of_layer = hidden * (2 * heads * config.head_dim + 3 * inner)
    tables = 1 if config.tie_word_embeddings else 2
    weights = tables * config.vocab_size * hidden + layers * of_layer
    cached = 2 * layers * config.num_key_value_heads * config.head_dim * config.positions_max
    return 2 * ((ranks + 1) * weights + sequences * cached)


def _is_dense_and_static(chosen: argparse.Namespace, config: Config) -> bool:
    return not (config.num_local_experts or chosen.counters or chosen.schedulers)


def _workers(chosen: argparse.Namespace, config: Config, prompts: list[list[int]]) -> int:
    """Returns the blocks per rank; 0 if `DenseDecoder` is to choose as many as fit."""
    if chosen.workers is not None:
        return chosen.workers
    if not _is_dense_and_static(chosen, config):
        return WORKERS
    if chosen.device == "cuda":
        return 0
    return max(WORKERS, config.num_key_value_heads // chosen.ranks * len(prompts))
