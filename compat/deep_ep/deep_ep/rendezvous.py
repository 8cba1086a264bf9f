"""How the ranks of a process group become a world, and how long it waits."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

import tokenyard
from tokenyard.errors import invalid
from tokenyard.world import check_timeout

TIMEOUT_S = 100.0
"""Seconds that any wait may take unless the caller or the environment says otherwise, as in
DeepEP."""
TIMEOUT_VARIABLE = "TOKENYARD_DEEP_EP_TIMEOUT"
"""Environment variable: the same, in seconds."""


def timeout_of(asked: float | None) -> float:
    """Seconds that any wait may take: what the caller asks for, else what the environment says."""
    if asked is not None:
        return check_timeout(asked)
    text = os.environ.get(TIMEOUT_VARIABLE)
    if text is None:
        return TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        raise invalid(TIMEOUT_VARIABLE, "seconds in the environment", repr(text)) from None
    return check_timeout(seconds, TIMEOUT_VARIABLE)


def join_rendezvous(
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
