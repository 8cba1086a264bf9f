"""Finds where the ranks of a job meet: from the environment, torchrun's store, a torch group, or a
communicator of mpi4py.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from operator import index
from typing import Any

from ..errors import InvalidArgument, Unsupported, invalid
from ..secret import agreed_secret, offer_of, require_alike, secret_in_environment, secret_of
from .environment import EXPLICIT, STORE_VARIABLE, TORCHRUN, FoundRank, find_rank


@dataclass
class Place:
    """Arguments with which a rank connects to its world."""

    host: str
    port: int
    rank: int
    size: int
    local_rank: int
    job: str
    secret: str | None = field(default=None, repr=False)
    """None: that of this user's processes on this host."""
    held: HeldPort | None = None
    """On rank 0, if the port was chosen here: reserves it until all ranks have connected."""
    found: FoundRank | None = None
    """The rank as the launcher's variables give it, if they were read."""


class HeldPort:
    """Reserves a free TCP port, on which another socket may still listen.

    The socket is bound with SO_REUSEADDR and does not listen: Linux then lets another socket bind
    the port explicitly, but does not assign it as a free one.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()


def store_at(host: str, port: int) -> str:
    """Returns the address of the store that rank 0 serves."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def job_of_group(group: Any) -> Any:
    """Returns a handle of the native job that has exactly a torch group's ranks; else None."""
    import torch.distributed as dist

    if "tokenyard" not in str(dist.get_backend(group)):
        return None
    from ..torch.backend_state import state_of

    state = state_of(group or dist.group.WORLD)
    if state is None or not state.job.has_ranks(state.global_ranks):
        return None
    return state.job.collectives._native.share()


def from_environment(timeout: float) -> Place:
    """Finds this rank's place by the variables of its launcher; see `environment`."""
    found = find_rank()
    host, port = _host_and_port(found)
    place = Place(
        host=host,
        port=port,
        rank=found.rank,
        size=found.size,
        local_rank=found.local_rank,
        job=found.job,
        found=found,
    )
    if found.launcher == TORCHRUN.name:
        _agree_through_torchrun(place, timeout)
    elif found.launcher == EXPLICIT.name:
        place.secret = secret_in_environment()
    else:
        place.secret = secret_of(None)
    return place


def _host_and_port(found: FoundRank) -> tuple[str, int]:
    kind, _, address = found.store.partition("://")
    host, _, port = address.rpartition(":")
    if kind != "tcp" or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        expected = f"tcp://host:port, where rank 0 of a World listens ({found.launcher})"
        raise invalid(STORE_VARIABLE, expected, repr(found.store))
    return host.removeprefix("[").removesuffix("]"), int(port)


def _agree_through_torchrun(place: Place, timeout: float) -> None:
    """Replaces MASTER_PORT, on which torchrun itself listens, by a port agreed in its store.

    The store also holds the secret, unless the ranks bring their own: that is as safe as the store,
    which torch neither encrypts nor guards.
    """
    try:
        from torch.distributed import TCPStore
    except ImportError:
        raise Unsupported(
            "World.from_env under torchrun needs torch, whose store holds MASTER_PORT",
            asked="World.from_env under torchrun",
            why="torch cannot be imported",
        ) from None
    store = TCPStore(place.host, place.port, is_master=False, timeout=timedelta(seconds=timeout))
    # The key differs for every restart of the job and for every world of it.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    own = secret_in_environment()
    mine = store.add(f"tokenyard/{attempt}/worlds/{place.rank}", 1)
    key = f"tokenyard/{attempt}/{mine}"
    if place.rank == 0:
        place.held = HeldPort()
        store.set(key, f"{place.held.number} {secrets.token_hex(8)} {offer_of(own)}")
    port, place.job, offered = store.get(key).decode().split()
    place.port = int(port)
    place.secret = agreed_secret(own, offered, place.rank)


def from_torch(group: Any, ranks: Sequence[int] | None) -> Place | None:
    """Exchanges addresses through the group, and the secret that the first rank draws unless the
    ranks bring their own: it is as safe as the group's own connections. Collective.

    Returns None on a rank that is not among its own `ranks`.
    """
    import torch.distributed as dist

    mine, size = dist.get_rank(group), dist.get_world_size(group)
    members, fault = _members(ranks, mine, size)
    own, unreadable = _own_secret()
    fault = fault or unreadable
    held = HeldPort() if members[:1] == [mine] else None
    offer = (held.number, secrets.token_hex(8), offer_of(own)) if held else None
    gathered: list[Any] = [None] * size
    try:
        # Faults are raised after the gather, in which the other ranks wait for this one.
        said = (fault, members, socket.gethostname(), host_address(), offer, own is not None)
        dist.all_gather_object(gathered, said, group)
        for fault, *_ in gathered:
            if fault is not None:
                raise fault
        for rank in members if mine in members else []:
            theirs = gathered[rank][1]
            if theirs != members:
                raise invalid("ranks", f"{members} as on rank {mine}", str(theirs), rank)
        require_alike([gathered[rank][5] for rank in members])
    except BaseException:
        if held is not None:
            held.release()
        raise
    if mine not in members:
        return None

    hosts = [gathered[rank][2] for rank in members]
    *_, address, (port, job, offered), _ = gathered[members[0]]
    number = members.index(mine)
    return Place(
        host="127.0.0.1" if len(set(hosts)) == 1 else address,
        port=port,
        rank=number,
        size=len(members),
        local_rank=_local_rank(hosts, number),
        job=job,
        secret=agreed_secret(own, offered, number),
        held=held,
    )


def from_mpi(comm: Any) -> Place:
    """Exchanges addresses through a communicator of mpi4py. Collective; waits as long as MPI does.

    Rank 0 reserves a port and draws the job's name and, unless the ranks bring their own, its
    secret, and `comm.bcast` hands them over: they are as safe as MPI's own connections.
    """
    try:
        rank, size = comm.Get_rank(), comm.Get_size()
        gather, broadcast = comm.allgather, comm.bcast
    except AttributeError:
        raise invalid("comm", "a communicator of mpi4py", f"a {type(comm).__name__}") from None
    own, fault = _own_secret()
    said = gather((socket.gethostname(), fault, own is not None))
    hosts = [host for host, *_ in said]
    for _, fault, _ in said:
        if fault is not None:
            raise fault
    require_alike([brings for *_, brings in said])
    held: HeldPort | None = None
    offer: Any = None
    try:
        if rank == 0:
            try:
                held = HeldPort()
                offer = host_address(), held.number, secrets.token_hex(8), offer_of(own)
            except OSError as error:
                offer = error  # Raised after the broadcast, in which the other ranks wait.
        offer = broadcast(offer, root=0)
        if isinstance(offer, OSError):
            raise offer
        address, port, job, offered = offer
        secret = agreed_secret(own, offered, rank)
    except BaseException:
        if held is not None:
            held.release()
        raise
    return Place(
        host="127.0.0.1" if len(set(hosts)) == 1 else address,
        port=port,
        rank=rank,
        size=size,
        local_rank=_local_rank(hosts, rank),
        job=job,
        secret=secret,
        held=held,
    )


def _own_secret() -> tuple[str | None, InvalidArgument | None]:
    """Returns the secret that this rank brings, or the fault in it, for all ranks to raise."""
    try:
        return secret_in_environment(), None
    except InvalidArgument as fault:
        return None, fault


def _members(
    ranks: Sequence[int] | None, mine: int, size: int
) -> tuple[list[int], InvalidArgument | None]:
    """Returns the ranks that this rank names, or none and the fault in them."""
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
    """Returns torch's current GPU if it has one, else the index among this host's ranks."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.current_device())
    return hosts[:number].count(hosts[number])


def device_of_group(group: Any) -> str:
    """Returns "cuda" for a group over NCCL, else "host"."""
    import torch.distributed as dist

    return "cuda" if "nccl" in str(dist.get_backend(group)) else "host"


def host_address() -> str:
    """Returns an address at which other machines reach this one."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
