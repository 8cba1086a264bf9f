"""Checks, when a buffer is made, that every rank reaches every other one."""

from __future__ import annotations

import tokenyard

from .refusal import unsupported


def require_reach(world: tokenyard.World, buffer: str) -> None:
    """Raises Unsupported, on all ranks alike, unless all reach one another by loads and stores.

    The reason is told here and not by the first call, which may come minutes later. There is no
    slower way that a call could take instead.

    Args:
        buffer: name of the class, for the sentence.
    """
    out_of_reach = [
        f"rank {world.rank} cannot reach rank {rank} ({peer.why_not or 'no common memory'})"
        for rank, peer in enumerate(world.topology.peers)
        if peer.reach not in ("self", "load_store")
    ]
    told = world.all_gather("\n".join(out_of_reach[:1]).encode(), f"reach of {buffer}")
    missing = [each.decode() for each in told if each]
    if missing:
        raise unsupported(
            f"{buffer} over these ranks",
            f"{missing[0]}; give a group whose ranks are on one host, each on a GPU that can access"
            " the others' memory (NVLink or PCIe peer access), or use DeepEP itself",
        )
