"""Checks, when a buffer is made, that every rank reaches every other one."""

from __future__ import annotations

from ..errors import Unsupported
from ..world import World


def require_reach(world: World, buffer: str, library: str, *, hosts: bool = False) -> None:
    """Raises Unsupported, on all ranks alike, unless all ranks reach one another.

    The reason is told here and not by the first call, which may come minutes later. There is no
    slower way that a call could take instead.

    Args:
        buffer: name of the class, for the sentence.
        library: the library whose class it is.
        hosts: whether ranks of other hosts may be reached by the network. Ranks of one host reach
            one another by loads and stores.
    """
    topology = world.topology

    def is_reached(rank: int) -> bool:
        reach = topology.peers[rank].reach
        far = topology.host_of[rank] != topology.host_of[world.rank]
        return reach in ("self", "load_store") or (hosts and far and reach == "put_signal")

    out_of_reach = [
        f"rank {world.rank} cannot reach rank {rank} ({peer.why_not or 'no common memory'})"
        for rank, peer in enumerate(topology.peers)
        if not is_reached(rank)
    ]
    told = world.all_gather("\n".join(out_of_reach[:1]).encode(), f"reach of {buffer}")
    missing = [each.decode() for each in told if each]
    if missing:
        asked = f"{buffer} over these ranks"
        ranks = "whose ranks of a host are each" if hosts else "whose ranks are on one host, each"
        why = (
            f"{missing[0]}; give a group {ranks} on a GPU that can access"
            f" the others' memory (NVLink or PCIe peer access), or use {library} itself"
        )
        raise Unsupported(f"{asked}: {why}", asked=asked, why=why)
