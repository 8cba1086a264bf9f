"""Ranks of several hosts: whether a group has them, known before its world is made, and their room.

Messages of low-latency calls to ranks of other hosts take memory at both ends, which only the world
knows where it is made: too late, since its arena has a size by then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..world.network import NetworkOptions

HOST_NAME_VARIABLE = "TOKENYARD_HOST_NAME"
QUEUES_VARIABLE = "TOKENYARD_NETWORK_QUEUES"
QUEUES_MIN, QUEUES_MAX = 8, 1024
"""Queues per peer: an ExpertParallel takes two, a LowLatency one."""
MIRRORS, MESSAGES = 4, 2
"""Bytes per byte of a low-latency exchange inside a host: those of mirrors, and of messages, which
lie in the arena on a host and beside it on a GPU. Enough for any number of ranks."""


def host_identity(host_name: str | None = None) -> str:
    """Returns a text that ranks of one host share, as worlds tell hosts apart."""
    name = host_name or os.environ.get(HOST_NAME_VARIABLE)
    if name:
        return f"named {name}"
    seen = []
    for place in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/net"):
        path = Path(place)
        try:
            seen.append(path.read_text() if path.name == "boot_id" else str(path.stat().st_ino))
        except OSError:
            seen.append("")
    return " ".join(seen)


def spans_hosts(gather: Callable[[str], Sequence[str]], host_name: str | None = None) -> bool:
    """Returns whether ranks are on several hosts. Collective: `gather` returns all ranks' texts."""
    return len(set(gather(host_identity(host_name)))) > 1


def gather_over_group(group: Any) -> Callable[[str], Sequence[str]]:
    """Returns what gathers texts over a torch process group."""

    def gather(text: str) -> Sequence[str]:
        import torch.distributed as dist

        texts: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(texts, text, group)
        return texts

    return gather


def message_bytes(exchange_bytes: int, device: str) -> int:
    """Returns the arena bytes of messages beside those of low-latency exchanges themselves."""
    return exchange_bytes * (MIRRORS if device == "cuda" else MIRRORS + MESSAGES)


def queues_per_peer(asked: int) -> NetworkOptions | None:
    """Returns a network with as many queues per peer as a caller asked for, or as its site has."""
    if QUEUES_VARIABLE in os.environ:
        return None
    return NetworkOptions(queues=min(max(asked, QUEUES_MIN), QUEUES_MAX))
