"""A batch on three ranks and its expected results, for the tests of the deep_ep package."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tokenyard

PACKAGE = Path(__file__).parents[2] / "compat" / "deep_ep"

try:
    import torch
except ModuleNotFoundError:
    torch = None  # Skipped test by test: a file without tests counts as a failure.
else:
    sys.path.insert(0, str(PACKAGE))

needs_torch = pytest.mark.skipif(torch is None, reason="needs torch")

RANKS, EXPERTS, TOPK, HIDDEN = 3, 12, 4, 256
LOCAL = EXPERTS // RANKS
NVL_BYTES = 32 << 20
LARGEST = 40
"""Largest number of tokens per low-latency call."""


def inputs(rank: int) -> tuple[Any, Any, Any]:
    """Returns any rank's input, so that each rank knows what the others send.

    Tokens are small integers and ids have holes. Ranks have different numbers of tokens, the last
    one none.
    """
    tokens = 30 - 15 * rank
    generator = torch.Generator("cpu").manual_seed(rank)
    with torch.device("cpu"):
        x = torch.randint(-8, 9, (tokens, HIDDEN), generator=generator).to(torch.bfloat16)
        picks = torch.rand(tokens, EXPERTS, generator=generator).argsort(1)[:, :TOPK].contiguous()
        picks[torch.rand(tokens, TOPK, generator=generator) < 0.2] = -1
        return x, picks, torch.rand(tokens, TOPK, generator=generator)


def in_ranks(topk_idx: Any) -> Any:
    """Returns [tokens, ranks] whether the token goes to the rank."""
    owner = topk_idx.div(LOCAL, rounding_mode="floor")
    return torch.stack([(owner == rank).any(1) for rank in range(RANKS)], 1)


def expected_rows(rank: int) -> tuple[Any, Any, Any]:
    """Returns the rows that a rank receives: tokens, local ids, weights, ordered by source."""
    parts = []
    for source in range(RANKS):
        x, topk_idx, weights = inputs(source)
        here = in_ranks(topk_idx)[:, rank]
        local = topk_idx[here] - rank * LOCAL
        mine = (local >= 0) & (local < LOCAL) & (topk_idx[here] >= 0)
        parts.append((x[here], local.where(mine, -1), weights[here].where(mine, 0)))
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))  # type: ignore[return-value]


def expected_sum(x: Any, topk_idx: Any) -> Any:
    """Returns the sums of rows that are returned unchanged."""
    return (x.float() * in_ranks(topk_idx).sum(1, keepdim=True)).to(torch.bfloat16)


def expected_counts(rank: int) -> list[int]:
    ids = torch.cat([inputs(source)[1].flatten() for source in range(RANKS)])
    return [(ids == rank * LOCAL + expert).sum().item() for expert in range(LOCAL)]


def run_on(
    device: str,
    program: Callable[[tokenyard.World], Any],
    ranks: int = RANKS,
    arena_bytes: int = 128 << 20,
) -> None:
    """Runs a program on ranks with tensors on the world's device."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")

    def rank_main(world: tokenyard.World) -> None:
        if world.device_index is not None:
            torch.cuda.set_device(world.device_index)
        with torch.device(device_of(world)):
            program(world)

    tokenyard.launch(rank_main, ranks=ranks, device=device, arena_bytes=arena_bytes, timeout=60)


def serving_buffer_of(world: tokenyard.World, **options: Any) -> Any:
    """Returns the options of low-latency calls."""
    from deep_ep import Buffer

    size = Buffer.get_low_latency_rdma_size_hint(LARGEST, HIDDEN, world.size, EXPERTS)
    return Buffer(world, 0, size, low_latency_mode=True, num_qps_per_rank=LOCAL, **options)


def device_of(world: tokenyard.World) -> str:
    return "cpu" if world.device_index is None else f"cuda:{world.device_index}"


def given(world: tokenyard.World, rank: int | None = None) -> Any:
    """Returns a rank's inputs on this world's device."""
    tensors = inputs(world.rank if rank is None else rank)
    return [tensor.to(device_of(world)) for tensor in tensors]


def equal(seen: Any, expected: Any) -> bool:
    return torch.equal(seen.cpu(), expected.cpu())
