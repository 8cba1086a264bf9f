"""A World: one rank's end of a set of ranks that reach one another's arenas."""

from __future__ import annotations

import dataclasses
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from numbers import Real
from typing import TYPE_CHECKING, Any

import _tokenyard

from ..closing import Closing
from ..errors import Error, InvalidArgument, Unsupported, invalid
from ..secret import secret_or_none
from ..sizes import size_of, text_of
from . import rendezvous
from .launched import RENDEZVOUS_S, Launched
from .network import NetworkOptions, native_network
from .rendezvous import Place

if TYPE_CHECKING:
    from ..job import Job

DEFAULT_TIMEOUT = 30.0
"""Default deadline of every wait, in seconds."""
DEFAULT_ARENA_BYTES = 1 << 30
"""Default arena size per rank, in bytes; on the host, pages are committed when touched."""
RELEASED_ARENA_BYTES = 1 << 16
"""Arena bytes of a world whose arena was released; a world needs an arena."""


class World(Closing):
    """One rank's end of a set of ranks that reach one another's arenas. All ranks make it together.

    Ranks of one host share memory; ranks of different hosts are joined by a network. `topology`
    says how each is reached, and why.

    `launch` makes one per rank; `from_env` and `from_torch` are for programs that already run as
    one process per rank, and a `Job` makes worlds, too. A world is a context manager that closes
    it.

    A world, and exchanges made on it, may be used by one thread at a time (`cancel` by any), and
    only in the process that made it, not in a fork.

    >>> def hello(world):
    ...     world.barrier()
    ...     return f"rank {world.rank} of {world.size}"
    >>> tokenyard.launch(hello, ranks=2)
    ['rank 0 of 2', 'rank 1 of 2']
    """

    def __init__(self, native: Any, device: str, launched: Launched | None = None) -> None:
        """Wraps a native world; not for users: see `launch` and the class methods."""
        self._native: _tokenyard.World = native
        self._device = device
        self._launched = launched
        self._kept_bytes: int | None = None  # Size of the arena, once it is released.
        self._rebuilt: Callable[[], World | None] = lambda: None  # The world that followed.
        self._launcher: str | None = None
        # Copies that outlive the native world: an error handler may log them.
        self._rank: int = native.rank
        self._size: int = native.size
        self._device_index: int | None = native.device_index
        self._timeout: float = native.timeout_s
        self._topology: _tokenyard.Topology = native.topology

    @classmethod
    def connect(
        cls,
        host: str,
        port: int,
        *,
        rank: int,
        size: int,
        local_rank: int | None = None,
        device: str = "host",
        job: str = "tokenyard",
        secret: str | None = None,
        secret_file: str | os.PathLike[str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        arena_bytes: int = DEFAULT_ARENA_BYTES,
        host_name: str | None = None,
        network: NetworkOptions | None = None,
    ) -> World:
        """Joins the world whose rank 0 listens on host:port; blocks until all ranks have joined.

        Deprecated: use `tokenyard.connect("tcp://host:port", ...)`, then the `world` of that job.

        Args:
            host, port: address on which rank 0 listens and to which the others connect.
            rank, size: this rank's number, and the number of ranks.
            local_rank: index of this rank on its machine, which selects its GPU; `rank` if None.
            device: "host", or "cuda" for one GPU per rank.
            job: a name that all ranks share; jobs with other names stay apart.
            secret, secret_file: the job's secret, or a file with it, without which nobody joins;
                else that of TOKENYARD_SECRET_FILE or TOKENYARD_SECRET. If there is none, the ranks
                use a secret that the processes of this user on this host share.
            timeout: deadline of this call and of every later wait, in seconds.
            arena_bytes: bytes of this rank that its peers can reach.
            host_name: ranks with the same name share memory, others reach one another over the
                network; else that of TOKENYARD_HOST_NAME. If there is none, ranks of one machine
                and network namespace share memory.
            network: options of the network to ranks of other hosts; see NetworkOptions.

        Raises:
            PeerTimeout: a rank did not join in time; names it.
            InvalidArgument: an argument is wrong, or contradicts another rank's: two ranks with
                one number, or sizes that differ.
            Unsupported: the network cannot connect two ranks, which it names, with the reason.
        """
        _deprecated("connect", 'tokenyard.connect("tcp://host:port", ...), then its world(...)')
        place = Place(
            host=text_of("host", host),
            port=size_of("port", port, largest=65535),
            rank=rank,
            size=size,
            local_rank=rank if local_rank is None else local_rank,
            job=text_of("job", job),
            secret=secret_or_none(secret, secret_file) or "",
        )
        return cls._at(
            place,
            device=device,
            timeout=timeout,
            arena_bytes=arena_bytes,
            host_name=host_name,
            network=network,
        )

    @classmethod
    def _at(
        cls,
        place: Place,
        *,
        device: str = "host",
        timeout: float = DEFAULT_TIMEOUT,
        arena_bytes: int = DEFAULT_ARENA_BYTES,
        host_name: str | None = None,
        network: NetworkOptions | None = None,
    ) -> World:
        """Makes a world, and its job, of the ranks that meet at a place; not for users."""
        ranks = size_of("size", place.size, smallest=1)
        number = size_of("rank", place.rank, largest=ranks - 1)
        try:
            native = _tokenyard.World.connect(
                host=place.host,
                port=place.port,
                rank=number,
                size=ranks,
                local_rank=size_of("local_rank", place.local_rank),
                job=place.job,
                secret=place.secret or "",
                device=check_device(device),
                timeout_s=check_timeout(timeout),
                rendezvous_s=0.0,
                arena_bytes=size_of("arena_bytes", arena_bytes, largest=2**63 - 1),
                host_name="" if host_name is None else text_of("host_name", host_name),
                network=native_network(network),
            )
        finally:
            if place.held is not None:
                place.held.release()
        return cls(native, device)

    @classmethod
    def from_env(
        cls,
        *,
        device: str = "host",
        timeout: float = DEFAULT_TIMEOUT,
        arena_bytes: int = DEFAULT_ARENA_BYTES,
        host_name: str | None = None,
        network: NetworkOptions | None = None,
    ) -> World:
        """Joins the world that the launcher's environment variables describe.

        Reads what torchrun, Open MPI, MPICH, Intel MPI or Slurm's srun sets, or RANK, WORLD_SIZE,
        LOCAL_RANK, MASTER_ADDR and MASTER_PORT; `launcher` says which was found. Rank 0 listens on
        MASTER_ADDR:MASTER_PORT or TOKENYARD_STORE ("tcp://host:port"), and otherwise at an address
        that follows from the launcher's variables; under torchrun, on a free port that the ranks
        agree on through torchrun's store. Blocks until all ranks have joined.

        The secret is that of TOKENYARD_SECRET_FILE or TOKENYARD_SECRET. Without one, torchrun's
        ranks use a secret that rank 0 draws and torchrun's store hands over, and ranks with RANK
        and WORLD_SIZE one that the processes of this user on this host share.

        Args:
            device, timeout, arena_bytes, network: as `Job.world`.
            host_name: ranks with the same name share memory, others reach one another over the
                network; else that of TOKENYARD_HOST_NAME. If there is none, ranks of one machine
                and network namespace share memory.

        Raises:
            InvalidArgument: names a variable that is missing, out of range, or contradicts another;
                or there is no secret, and the launcher is Slurm or MPI.
            PeerTimeout: a rank did not join in time; names it.
        """
        place = rendezvous.from_environment(check_timeout(timeout))
        assert place.found is not None
        try:
            world = cls._at(
                place,
                device=device,
                timeout=timeout,
                arena_bytes=arena_bytes,
                host_name=host_name,
                network=network,
            )
        except Error as error:
            error.add_note(f"The environment was read as {place.found}.")
            raise
        world._launcher = place.found.launcher
        return world

    @classmethod
    def from_torch(
        cls,
        group: Any = None,
        ranks: Sequence[int] | None = None,
        *,
        device: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        arena_bytes: int = DEFAULT_ARENA_BYTES,
        host_name: str | None = None,
        network: NetworkOptions | None = None,
    ) -> World | None:
        """Makes a world of the ranks of a torch process group, or of some of them. Collective.

        A group of backend "tokenyard" has a job, which the world stands on: a death is learned
        once, and `job` goes on after it.

        Every rank of the group calls it with the ranks of its own world, so one call makes a world
        of a subset, or several disjoint worlds.

        Args:
            group: a torch.distributed process group; the default group if None.
            ranks: ranks of the group that form this rank's world; ranks[i] becomes rank i. All
                ranks if None.
            device: "host" or "cuda"; None for "cuda" if the group uses NCCL, else "host".
            timeout, arena_bytes, host_name, network: as `from_env`. A group of backend "tokenyard"
                has the hosts of its job.

        Returns:
            The world, or None on a rank that is not among its own `ranks`.

        Raises:
            InvalidArgument: `ranks` is wrong, or differs between ranks of one world.
            PeerTimeout: a rank did not join in time; names it.
        """
        chosen = device or rendezvous.device_of_group(group)
        job = rendezvous.job_of_group(group) if ranks is None else None
        if job is not None:
            native = job.world(
                device=check_device(chosen),
                timeout_s=check_timeout(timeout),
                arena_bytes=size_of("arena_bytes", arena_bytes, largest=2**63 - 1),
                network=native_network(network),
            )
            return cls(native, chosen)
        place = rendezvous.from_torch(group, ranks)
        if place is None:
            return None
        return cls._at(
            place,
            device=chosen,
            timeout=timeout,
            arena_bytes=arena_bytes,
            host_name=host_name,
            network=network,
        )

    @property
    def rank(self) -> int:
        """Index of this rank, from 0.

        Like `size`, `device`, `device_index`, `timeout` and `topology` it remains readable after
        the world is closed or rebuilt.
        """
        return self._rank

    @property
    def size(self) -> int:
        """Number of ranks; in a world of a job, which may grow, places for them."""
        if not self._native.closed:
            self._size = self._native.size
        return self._size

    @property
    def device(self) -> str:
        """Device on which this rank's kernels run: "host" or "cuda"."""
        return self._device

    @property
    def device_index(self) -> int | None:
        """CUDA ordinal of this rank's GPU within this process; None on the host."""
        return self._device_index

    @property
    def timeout(self) -> float:
        """Deadline of every wait, in seconds."""
        return self._timeout

    @property
    def launcher(self) -> str | None:
        """Launcher that `from_env` found, such as "torchrun" or "Slurm"; None for other worlds."""
        return self._launcher

    @property
    def job(self) -> Job:
        """The job that this world's ranks are of: its membership, collectives and further worlds.

        Raises:
            Unsupported: the ranks are threads of one process.
        """
        from ..job import Job

        job = Job(self._native.job(), founds=False)
        job._launcher, job._launched = self._launcher, self._launched
        return job

    @property
    def topology(self) -> _tokenyard.Topology:
        """The fabric to each peer, with the reason why it is not a faster one; printable."""
        if not self._native.closed:
            self._topology = self._native.topology
        return self._topology

    def network_paths(self) -> list[_tokenyard.NetworkPath]:
        """Returns the connections to ranks of other hosts; empty if there are none.

        Each says whether it is up, how often it was lost, its bytes and its measured rate.
        """
        return self._native.network_paths()

    def time_peers(self, *, timeout: float = 5.0) -> list[_tokenyard.PeerTimes]:
        """Times put and signal to each rank that is reached only so. Collective.

        A rank that does not answer within `timeout` seconds is told in `error`. Meanwhile a queue
        of the network is used, and about 2 MiB of the arena.

        Raises:
            Unsupported: a rank has no queue left.
            InvalidArgument: a rank has no memory left.
        """
        return self._native.time_peers(timeout_s=check_timeout(timeout))

    def network_metrics(self) -> dict[str, Any]:
        """Returns totals of the network to ranks of other hosts; see `prometheus_text`.

        `sent_bytes_by_peer`, `path_losses_by_peer` (times that a path was given up, and its queues
        went on over others) and `paths_up_by_peer` have a number per rank: docs/metrics.md.
        """
        sent, losses, up = [0] * self.size, [0] * self.size, [0] * self.size
        for path in self.network_paths():
            sent[path.rank] += path.bytes_sent
            losses[path.rank] += path.times_lost
            up[path.rank] += int(path.up)
        return {
            "exchange": "network",
            "rank": self.rank,
            "sent_bytes_by_peer": sent,
            "path_losses_by_peer": losses,
            "paths_up_by_peer": up,
        }

    def all_gather(self, mine: bytes, what: str = "all_gather") -> list[bytes]:
        """Returns every rank's bytes, by rank. Collective; blocks. Lengths may differ.

        Args:
            mine: bytes of this rank.
            what: a name for error messages; InvalidArgument is raised if ranks pass different
                ones.

        Raises:
            PeerTimeout, PeerLost: a rank did not take part; names the rank and `what`.

        >>> tokenyard.launch(lambda world: world.all_gather(bytes(world.rank)), ranks=2)
        [[b'', b'\\x00'], [b'', b'\\x00']]
        """
        return self._native.all_gather(bytes(mine), what=what)

    def barrier(self, what: str = "barrier") -> None:
        """Blocks until every rank has called it. Collective.

        Args:
            what: a name for error messages, the same on all ranks.

        Raises:
            PeerTimeout, PeerLost: a rank did not take part; names the rank and `what`.
        """
        self._native.barrier(what=what)

    @property
    def is_replacement(self) -> bool:
        """Whether this process replaced a lost rank, so that it lacks the state of the others.

        True in the world that `launch(..., on_death="replace")` passes to `fn` in a new process.
        """
        return self._launched is not None and self._launched.new

    def lost(self) -> list[int]:
        """Returns the ranks that are known to be gone, ascending; does not wait.

        Deprecated for ranks that are processes: `world.job.active_ranks()` says who is left.
        """
        if self._has_job():
            _deprecated("lost", "world.job.active_ranks()")
        return self._native.lost()

    def _has_job(self) -> bool:
        """Returns whether its ranks are processes."""
        try:
            self._native.job()
        except Unsupported:
            return False
        return True

    def cancel(self) -> None:
        """Ends every wait of this rank with Cancelled; any thread may call it."""
        self._native.cancel()

    def _cancel_all(self) -> None:
        """Cancels this world and every world rebuilt from it; called by another thread."""
        world: World | None = self
        while world is not None:
            with suppress(InvalidArgument):  # Closed.
                world._native.cancel()
            world = world._rebuilt()

    def rebuild(self, without: Sequence[int]) -> World:
        """Makes a new world of the ranks not in `without`, and closes this one.

        Collective among the remaining ranks; blocks. They are renumbered in order and get a new
        arena of the original size, even if the old one was released. After a failure all of them
        may call it again.

        Ranks that are processes agree by majority on who is left out: all ranks that any of them
        names, and all that are lost, also during this call. So they may name different ranks. A
        named rank stays if it names a lost rank itself: it waited for that one, so waits for it
        failed.

        Deprecated for ranks that are processes: call `world.job.recover()`, then
        `world.job.world(compact=True)`, or without `compact` to keep their numbers.

        Args:
            without: ranks to leave out; may be empty.

        Raises:
            InvalidArgument: the remaining ranks are threads and name different ranks.
            PeerLost: `without` is empty, but a rank is gone.
            OutOfTouch: the others go on without this rank.
            QuorumLost: too few ranks answered before the deadline to agree on who is left out.
            OsError: a rank cannot allocate its arena; names it.
        """
        gone = [size_of("without", rank, largest=self.size - 1) for rank in without]
        if self._has_job():
            _deprecated("rebuild", "world.job.recover(), then world.job.world(compact=True)")
        native = self._native.rebuild(gone, arena_bytes=self._kept_bytes or 0)
        launched = None if self._launched is None else self._launched.without(native.left_out)
        world = World(native, self._device, launched)
        world._launcher = self._launcher
        self._rebuilt = weakref.ref(world)
        return world

    def replace(self, lost: Sequence[int]) -> World:
        """Makes a new world of the same size in which new processes replace lost ranks.

        Collective among the surviving ranks; blocks, and closes this world. The launch kills what
        is left of the lost ranks' processes. The new ones call `fn` from its beginning with a world
        whose `is_replacement` is True. Ranks keep their numbers and get a new arena. Every
        rank that `rebuild` would leave out is replaced, named or not. If it fails because more
        ranks are lost, the remaining ones may call it again.

        Args:
            lost: the ranks to replace.

        Raises:
            Unsupported: the world was not made by `launch(..., on_death="replace")`.
            InvalidArgument: this rank names none.
            OutOfTouch, QuorumLost: as `rebuild`.
        """
        ranks = [size_of("lost", rank, largest=self.size - 1) for rank in lost]
        launched = self._launched
        if launched is None or not launched.replaces:
            asked, why = "replace", "only launch(..., on_death='replace') starts new processes"
            raise Unsupported(f"{asked}: {why}", asked=asked, why=why)
        gone = self._native.leave_out(ranks)
        if not gone:
            raise invalid("lost", "the ranks that are to be replaced", "none")
        # All survivors ask: the launch replaces each process once.
        processes = {launched.slots[rank]: process for rank, process in gone.items()}
        launched.tell("replace", (launched.slots, processes))
        native = self._native.refill(
            sorted(gone),
            arena_bytes=self._kept_bytes or self._native.arena_bytes,
            timeout_s=max(RENDEZVOUS_S, self._timeout),
        )
        return World(native, self._device, dataclasses.replace(launched, new=False))

    def release_arena(self) -> None:
        """Frees the arena's memory until `restore_arena`; the ranks stay connected. Collective.

        For example while a trainer is idle.

        Raises:
            InvalidArgument: an exchange is open or an array in the arena is alive, on some rank,
                which all ranks name; or the arena was already released.
        """
        if self._kept_bytes is not None:
            raise invalid("arena", "memory to give back", "none: it has been released")
        # A rank that refused alone would leave the others waiting.
        counts = self.all_gather(b"%d" % self._native.users, "release_arena")
        for rank, count in enumerate(int(digits or b"0") for digits in counts):
            if count:
                raise invalid(
                    "arena",
                    "no open exchange and no array in its memory",
                    f"{count} that need it",
                    rank,
                )
        kept = self._native.arena_bytes
        self._native = self._native.rebuild([], arena_bytes=RELEASED_ARENA_BYTES)
        self._kept_bytes = kept

    def restore_arena(self) -> None:
        """Allocates the arena again after `release_arena`. Collective.

        Exchanges must be made anew.

        Raises:
            InvalidArgument: the arena was not released.
        """
        if self._kept_bytes is None:
            raise invalid("arena", "one that was released", "one in use")
        self._native = self._native.rebuild([], arena_bytes=self._kept_bytes)
        self._kept_bytes = None

    def mem_pool(self) -> Any:
        """Returns a `torch.cuda.MemPool` over this rank's arena.

        A combine, and peers, read tensors from this pool in place. Per process and GPU, only one
        world's arena serves allocations: that of the latest call. torch frees the pool's memory
        only when the pool is destroyed.

        Raises:
            Unsupported: the world is on the host.
        """
        if self.device_index is None:
            asked, why = "mem_pool", "torch has pools for GPUs only; NumPy's arrays may be copied"
            raise Unsupported(f"{asked}: {why}", asked=asked, why=why)
        from . import mem_pool

        return mem_pool.over_arena(self._native)

    def close(self) -> None:
        """Leaves the world once its exchanges are closed and arrays in its arena are dropped.

        Does not wait for that; exchanges and arrays stay valid until then.
        """
        self._native.close()

    def __repr__(self) -> str:
        if self._native.closed:
            return "World(closed)"
        return f"World(rank={self.rank}, size={self.size}, device={self._device!r})"


def _deprecated(name: str, instead: str) -> None:
    text = f"World.{name} is deprecated: use {instead}"
    warnings.warn(text, DeprecationWarning, stacklevel=3)


def native_of(world: Any) -> Any:
    """Returns the module's World of `world`; raises InvalidArgument if it is no World."""
    if not isinstance(world, World):
        raise invalid("world", "a World", type(world).__name__)
    return world._native


def check_device(device: str) -> str:
    """Returns `device`; raises InvalidArgument unless it is "host" or "cuda"."""
    if device not in ("host", "cuda"):
        raise invalid("device", "'host' or 'cuda'", repr(device))
    return device


def check_timeout(timeout: float, argument: str = "timeout") -> float:
    """Returns `timeout` as a float; raises InvalidArgument unless it is in (0, 1e9) seconds."""
    if not isinstance(timeout, Real) or not 0 < timeout < 1e9:
        raise invalid(argument, "seconds, more than 0 and less than 1e9", repr(timeout))
    return float(timeout)
