"""Where the ranks of a job meet, as others tell it: the environment, torchrun's store, a group."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import index
from typing import Any

from ..errors import InvalidArgument, Unsupported, invalid


@dataclass
class Place:
    """What a rank needs to know of the meeting."""

    host: str
    port: int
    rank: int
    size: int
    local_rank: int
    job: str
    held: HeldPort | None = None
    """On rank 0, where the port was picked here: keeps it from others until all have come."""


class HeldPort:
    """A port that nobody else is given while this lives, yet that may be listened on.

    It is bound and does not listen, with SO_REUSEADDR: Linux then lets another socket bind it too,
    but never hands it out as a free one.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()


def from_environment(timeout: float) -> Place:
    """From RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT."""
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    place = Place(
        host=os.environ.get("MASTER_ADDR", "127.0.0.1"),
        port=_number("MASTER_PORT"),
        rank=rank,
        size=size,
        local_rank=_number("LOCAL_RANK", default=rank),
        job="tokenyard",
    )
    if "TORCHELASTIC_RUN_ID" in os.environ:
        _agree_through_torchrun(place, timeout)
    return place


def _number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise invalid(
            name, "a number in the environment", "nothing" if text is None else repr(text)
        )
    return int(text)


def _agree_through_torchrun(place: Place, timeout: float) -> None:
    """torchrun listens on MASTER_PORT itself: rank 0 picks a port and tells it in the store."""
    try:
        from torch.distributed import TCPStore
    except ImportError:
        raise Unsupported(
            "World.from_env under torchrun needs torch, whose store holds MASTER_PORT",
            asked="World.from_env under torchrun",
            why="torch cannot be imported",
        ) from None
    store = TCPStore(place.host, place.port, is_master=False, timeout=timedelta(seconds=timeout))
    # A restarted job is another job; so is a second world of the same one.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    mine = store.add(f"tokenyard/{attempt}/worlds/{place.rank}", 1)
    key = f"tokenyard/{attempt}/{mine}"
    if place.rank == 0:
        place.held = HeldPort()
        store.set(key, f"{place.held.number} {secrets.token_hex(8)}")
    port, place.job = store.get(key).decode().split()
    place.port = int(port)


def from_torch(group: Any, ranks: Sequence[int] | None) -> Place | None:
    """Through the group itself. None on a rank that is not among its own `ranks`. Collective."""
    import torch.distributed as dist

    mine, size = dist.get_rank(group), dist.get_world_size(group)
    members, fault = _members(ranks, mine, size)
    held = HeldPort() if members[:1] == [mine] else None
    offer = (held.number, secrets.token_hex(8)) if held else None
    gathered: list[Any] = [None] * size
    try:
        # What is wrong is judged afterwards: the others would wait for one who stayed away.
        said = (fault, members, socket.gethostname(), _address(), offer)
        dist.all_gather_object(gathered, said, group)
        for fault, *_ in gathered:
            if fault is not None:
                raise fault
        for rank in members if mine in members else []:
            theirs = gathered[rank][1]
            if theirs != members:
                raise invalid("ranks", f"{members} as on rank {mine}", str(theirs), rank)
    except BaseException:
        if held is not None:
            held.release()
        raise
    if mine not in members:
        return None

    hosts = [gathered[rank][2] for rank in members]
    *_, address, (port, job) = gathered[members[0]]
    number = members.index(mine)
    return Place(
        host="127.0.0.1" if len(set(hosts)) == 1 else address,
        port=port,
        rank=number,
        size=len(members),
        local_rank=_local_rank(hosts, number),
        job=job,
        held=held,
    )


def _members(
    ranks: Sequence[int] | None, mine: int, size: int
) -> tuple[list[int], InvalidArgument | None]:
    """The ranks of the group that this one names, or none and what is wrong with them."""
    try:
        members = list(range(size)) if ranks is None else [index(rank) for rank in ranks]
    except TypeError:
        return [], invalid("ranks", "a list of ranks", repr(ranks), mine)
    if not members or len(set(members)) != len(members):
        return [], invalid("ranks", "one or more ranks, none twice", str(members), mine)
    if not all(0 <= rank < size for rank in members):
        return [], invalid("ranks", f"ranks of the group, from 0 to {size - 1}", str(members), mine)
    return members, None


def _local_rank(hosts: list[str], number: int) -> int:
    """The GPU that torch was told to use; else the number among the ranks of this host."""
    torch = sys.modules["torch"]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.current_device())
    return hosts[:number].count(hosts[number])


def device_of_group(group: Any) -> str:
    """ "cuda" for a group over NCCL, else "host"."""
    import torch.distributed as dist

    return "cuda" if "nccl" in str(dist.get_backend(group)) else "host"


def _address() -> str:
    """An address at which other machines reach this one."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
