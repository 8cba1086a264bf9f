"""How the ranks of a process group become a world."""

from __future__ import annotations

import torch
import torch.distributed as dist

import tokenyard


def meet(
    group: dist.ProcessGroup, device: str | None, arena_bytes: int, timeout: float
) -> tokenyard.World:
    """Collective. `device`: "cuda" or "host"; None takes GPUs where there are any."""
    chosen = device or ("cuda" if torch.cuda.is_available() else "host")
    if chosen == "cuda":
        torch.cuda.init()  # Who has not set its device yet means the first one.
    world = tokenyard.World.from_torch(
        group, device=chosen, timeout=timeout, arena_bytes=arena_bytes
    )
    assert world is not None  # All ranks of the group are in it.
    return world
