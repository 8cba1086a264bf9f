"""The command line of the decoder example. Imports the standard library only."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from .families import FAMILIES

WORKERS_MAX = SCHEDULERS_MAX = 1024
"""Largest numbers of either: each is a thread on the host, and a block on a GPU."""


def parser(description: str) -> argparse.ArgumentParser:
    command = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument(
        "--ranks", type=at_least(1), default=1, metavar="N", help="tensor-parallel ranks (1)"
    )
    command.add_argument(
        "--processes", action="store_true", help="one process per rank, not a thread"
    )
    command.add_argument(
        "--hosts",
        type=at_least(1),
        default=1,
        metavar="N",
        help="hosts that the ranks count as being on: a divisor of --ranks (1)",
    )
    command.add_argument("--device", choices=("host", "cuda"), default="host", help="(host)")
    command.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"the config.json of a {', '.join(FAMILIES)} (with --weights the one beside them; "
        "else that of a tiny Llama)",
    )
    command.add_argument(
        "--weights",
        type=Path,
        metavar="PATH",
        help="safetensors: a file, or a folder with one or with an index of several (random "
        "without). Numbers that BF16 cannot hold are rounded to it",
    )
    command.add_argument("--seed", type=at_least(0), default=1, help="seed of random weights (1)")
    command.add_argument(
        "--experts",
        type=at_least(0),
        metavar="N",
        help="experts of the tiny model (0: dense); a config has its own",
    )
    command.add_argument(
        "--prompt",
        action="append",
        type=token_numbers,
        metavar="TOKENS",
        help="token numbers (1,2,3); give it 2, 4 or 8 times for a batch of sequences",
    )
    command.add_argument(
        "--tokens", type=at_least(1), default=32, metavar="N", help="tokens to decode (32)"
    )
    command.add_argument(
        "--positions", type=at_least(1), default=64, metavar="N", help="positions of the cache (64)"
    )
    command.add_argument(
        "--stop",
        type=stop_numbers,
        metavar="TOKENS",
        help="stop at any of these tokens, or at none (the config's eos_token_id)",
    )
    command.add_argument(
        "--workers",
        type=at_least(1, WORKERS_MAX),
        metavar="N",
        help="blocks per rank; use more for a longer cache (host: 4, or one per KV head and "
        "sequence; cuda: as many as fit)",
    )
    command.add_argument(
        "--schedulers",
        type=at_least(0, SCHEDULERS_MAX),
        default=0,
        metavar="N",
        help="blocks that assign tasks at run time (0: assign when compiling)",
    )
    command.add_argument(
        "--counters",
        action="store_true",
        help="stages wait for counters, and ranks exchange and add their sums",
    )
    command.add_argument("--trace", type=Path, metavar="FILE", help="for ui.perfetto.dev")
    command.add_argument("--no-check", action="store_true", help="do not compare with NumPy")
    return command


def at_least(smallest: int, largest: int = 2**31 - 1) -> Callable[[str], int]:
    """Returns the parser of an option that is a whole number from `smallest` to `largest`."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = smallest - 1
        if not smallest <= value <= largest:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {smallest} to {largest}"
            )
        return value

    return number


def token_numbers(text: str) -> list[int]:
    return [at_least(0)(token) for token in text.split(",")]


def stop_numbers(text: str) -> list[int]:
    return [] if text == "none" else token_numbers(text)
