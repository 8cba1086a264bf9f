"""A World: the ranks that work together, and how this one reaches the others."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any

import _tokenyard

from ..closing import Closing
from ..errors import InvalidArgument, Unsupported, invalid
from ..sizes import size_of, text_of
from . import rendezvous
from .launched import Launched, Replacing
from .rendezvous import Place

DEFAULT_TIMEOUT = 30.0
"""Seconds that any wait may take, unless told."""
DEFAULT_ARENA_BYTES = 1 << 30
"""Peer-visible memory of a rank, unless told; on the host it is taken as it is touched."""
RELEASED_ARENA_BYTES = 1 << 16
"""What is left of an arena that has been released: a world has one."""


class World(Closing):
    """One rank's end of a world. Made by all its ranks together; it, and what is made upon it, is
    used by one thread at a time, and by the process that made it, not by forks of that.

    `launch` makes one for each rank; `from_env`, `from_torch` and `connect` are for programs that
    already run as one process a rank. A world is a context manager, which closes it.

    >>> def hello(world):
    ...     world.barrier()
    ...     return f"rank {world.rank} of {world.size}"
    >>> tokenyard.launch(hello, ranks=2)
    ['rank 0 of 2', 'rank 1 of 2']
    """

    def __init__(self, native: Any, device: str, launched: Launched | None = None) -> None:
        """Not for callers: see `launch`, `from_env`, `from_torch`, `connect`."""
        self._native: _tokenyard.World = native
        self._device = device
        self._launched = launched
        self._replacing: Replacing | None = None  # The survivors, once a rank is to be replaced.
        self._kept_bytes: int | None = None  # Of an arena that has been released.
        self._rebuilt: Callable[[], World | None] = lambda: None  # What came of this one.
        # What never changes outlives the native world: a handler may log who it was.
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
        timeout: float = DEFAULT_TIMEOUT,
        arena_bytes: int = DEFAULT_ARENA_BYTES,
    ) -> World:
        """Joins the world whose rank 0 listens at host:port. Blocks until every rank has come.

        Args:
            host, port: where rank 0 listens, and all others knock.
            rank, size: this rank's number and how many there are.
            local_rank: this rank's number on its machine, which picks its GPU; `rank` if None.
            device: "host", or "cuda" for one GPU a rank.
            job: a name that all ranks share; whoever knocks with another is turned away.
            timeout: seconds that this and any later wait may take.
            arena_bytes: memory of this rank that its peers can reach.

        Raises:
            PeerTimeout: names a rank that did not come.
            InvalidArgument: for example two ranks with one number, or sizes that differ.
        """
        ranks = size_of("size", size, smallest=1)
        number = size_of("rank", rank, largest=ranks - 1)
        native = _tokenyard.World.connect(
            host=text_of("host", host),
            port=size_of("port", port, largest=65535),
            rank=number,
            size=ranks,
            local_rank=number if local_rank is None else size_of("local_rank", local_rank),
            job=text_of("job", job),
            device=check_device(device),
            timeout_s=check_timeout(timeout),
            rendezvous_s=0.0,
            arena_bytes=size_of("arena_bytes", arena_bytes, largest=2**63 - 1),
        )
        return cls(native, device)

    @classmethod
    def from_env(
        cls,
        *,
        device: str = "host",
        timeout: float = DEFAULT_TIMEOUT,
        arena_bytes: int = DEFAULT_ARENA_BYTES,
    ) -> World:
        """Joins the world that the environment describes, as torchrun and its like set it.

        Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Rank 0 listens at
        MASTER_ADDR:MASTER_PORT; under torchrun, whose own store holds that port, at a free port
        that the ranks agree on through the store.

        Raises:
            InvalidArgument: a variable is missing or no number.
            PeerTimeout: names a rank that did not come.
        """
        place = rendezvous.from_environment(check_timeout(timeout))
        return cls._rendezvous(place, device=device, timeout=timeout, arena_bytes=arena_bytes)

    @classmethod
    def from_torch(
        cls,
        group: Any = None,
        ranks: Sequence[int] | None = None,
        *,
        device: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        arena_bytes: int = DEFAULT_ARENA_BYTES,
    ) -> World | None:
        """A world over the ranks of a torch process group, or over some of them.

        Every rank of the group calls this, and gives the ranks of its own world: one call makes
        one world over a subset, or several side by side.

        Args:
            group: a torch.distributed process group; the default group if None.
            ranks: those of the group's ranks that make this rank's world, in the order of their
                new numbers; all if None.
            device: "host" or "cuda"; None takes "cuda" for a group over NCCL, else "host".

        Returns:
            The world, or None on a rank that is not among its own `ranks`.
        """
        place = rendezvous.from_torch(group, ranks)
        if place is None:
            return None
        chosen = device or rendezvous.device_of_group(group)
        return cls._rendezvous(place, device=chosen, timeout=timeout, arena_bytes=arena_bytes)

    @classmethod
    def _rendezvous(cls, place: Place, *, device: str, timeout: float, arena_bytes: int) -> World:
        try:
            return cls.connect(
                place.host,
                place.port,
                rank=place.rank,
                size=place.size,
                local_rank=place.local_rank,
                device=device,
                job=place.job,
                timeout=timeout,
                arena_bytes=arena_bytes,
            )
        finally:
            if place.held is not None:
                place.held.release()

    @property
    def rank(self) -> int:
        """This rank's number, from 0. Readable after the world is closed or rebuilt, too, as are
        `size`, `device`, `device_index`, `timeout` and `topology`."""
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._size

    @property
    def device(self) -> str:
        """Where this rank's kernels run: "host" or "cuda"."""
        return self._device

    @property
    def device_index(self) -> int | None:
        """The CUDA ordinal of this rank's GPU, as this process counts them; None on the host."""
        return self._device_index

    @property
    def timeout(self) -> float:
        """Seconds that any wait may take."""
        return self._timeout

    @property
    def topology(self) -> _tokenyard.Topology:
        """How this rank reaches each of the others, and why not better; printable."""
        return self._topology

    def all_gather(self, mine: bytes, what: str = "all_gather") -> list[bytes]:
        """Every rank's bytes, in the order of the ranks. Collective; lengths may differ.

        Args:
            mine: what this rank gives.
            what: a name for messages; ranks that name different things get InvalidArgument.

        >>> tokenyard.launch(lambda world: world.all_gather(bytes(world.rank)), ranks=2)
        [[b'', b'\\x00'], [b'', b'\\x00']]
        """
        return self._native.all_gather(bytes(mine), what=what)

    def barrier(self, what: str = "barrier") -> None:
        """Returns once every rank has called. Collective.

        Raises:
            PeerTimeout, PeerLost: naming the rank that did not come and `what`.
        """
        self._native.barrier(what=what)

    @property
    def is_replacement(self) -> bool:
        """Whether this process took the place of a lost rank, and has none of the state that the
        others have: in the world that `launch(..., on_death="replace")` gives to `fn`."""
        return self._launched is not None and self._launched.new

    def lost(self) -> list[int]:
        """Ranks that are known to be gone, ascending."""
        return self._native.lost()

    def cancel(self) -> None:
        """Ends every wait of this rank with Cancelled; any thread may call it."""
        self._native.cancel()

    def _cancel_all(self) -> None:
        """By another thread: the same of every world that was rebuilt from this one, too."""
        world: World | None = self
        while world is not None:
            with suppress(InvalidArgument):  # It is closed.
                world._native.cancel()
            world = world._rebuilt()

    def rebuild(self, without: Sequence[int]) -> World:
        """A new world of the ranks not in `without`. Collective among these.

        Ranks are renumbered in order, and memory is new, as much as this world was made with even
        if it has been released since. This world is closed by it. One that has failed may be tried
        again, by all.

        Raises:
            InvalidArgument: the survivors name different ranks.
            OsError: a rank, which is named, has no memory to give.
        """
        gone = [size_of("without", rank, largest=self.size - 1) for rank in without]
        native = self._native.rebuild(gone, arena_bytes=self._kept_bytes or 0)
        launched = None if self._launched is None else self._launched.without(gone)
        world = World(native, self._device, launched)
        self._rebuilt = weakref.ref(world)
        return world

    def replace(self, lost: Sequence[int]) -> World:
        """A new world of the same size, in which new processes take the places of lost ranks.
        Collective among the others.

        The launch ends what is left of the lost ranks' processes. The new ones call `fn` from its
        beginning, with a world whose `is_replacement` is True. Ranks keep their numbers; memory is
        new. This world is closed by it. After a failure, because more ranks are lost, all that are
        left may call it again with those as well.

        Raises:
            Unsupported: the world was not made by `launch(..., on_death="replace")`.
            InvalidArgument: the survivors name different ranks, or none.
        """
        gone = [size_of("lost", rank, largest=self.size - 1) for rank in lost]
        if self._replacing is None:
            settings = dict(
                device=self._device,
                timeout_s=self._timeout,
                arena_bytes=self._kept_bytes or self._native.arena_bytes,
            )
            self._replacing = Replacing(
                self._native, self.rank, self.size, self._launched, settings
            )
        native, launched = self._replacing.replace(gone)
        return World(native, self._device, launched)

    def release_arena(self) -> None:
        """Gives the arena's memory back while nothing is exchanged: for a trainer that sleeps.
        Collective. The ranks stay connected.

        Raises:
            InvalidArgument: an exchange is open, or an array that lies in the arena lives.
        """
        if self._kept_bytes is not None:
            raise invalid("arena", "memory to give back", "none: it has been released")
        if self._native.users:
            raise invalid(
                "arena",
                "no open exchange and no array in its memory",
                f"{self._native.users} that need it",
            )
        kept = self._native.arena_bytes
        self._native = self._native.rebuild([], arena_bytes=RELEASED_ARENA_BYTES)
        self._kept_bytes = kept

    def restore_arena(self) -> None:
        """Takes as much memory as `release_arena` has given back. Collective. Exchanges are to be
        made anew.

        Raises:
            InvalidArgument: it has not been released.
        """
        if self._kept_bytes is None:
            raise invalid("arena", "one that was released", "one in use")
        self._native = self._native.rebuild([], arena_bytes=self._kept_bytes)
        self._kept_bytes = None

    def mem_pool(self) -> Any:
        """A `torch.cuda.MemPool` over this rank's arena: what a GEMM writes to memory of it is read
        in place by a combine, and by peers.

        One world a GPU and process lends its arena at a time: the one that was asked last. What
        torch takes from the pool it keeps until the pool dies.

        Raises:
            Unsupported: the world is on the host.
        """
        if self.device_index is None:
            asked, why = "mem_pool", "torch has pools for GPUs only; NumPy's arrays may be copied"
            raise Unsupported(f"{asked}: {why}", asked=asked, why=why)
        from . import mem_pool

        return mem_pool.over_arena(self._native)

    def close(self) -> None:
        """Leaves the world as soon as its exchanges are closed and arrays in its arena have died,
        which stay as they are until then."""
        self._native.close()

    def __repr__(self) -> str:
        if self._native.closed:
            return "World(closed)"
        return f"World(rank={self.rank}, size={self.size}, device={self._device!r})"


def native_of(world: Any) -> Any:
    """A World as the module takes it; raises InvalidArgument for anything else."""
    if not isinstance(world, World):
        raise invalid("world", "a World", type(world).__name__)
    return world._native


def check_device(device: str) -> str:
    """Raises InvalidArgument for a device that has no name here."""
    if device not in ("host", "cuda"):
        raise invalid("device", "'host' or 'cuda'", repr(device))
    return device


def check_timeout(timeout: float, argument: str = "timeout") -> float:
    """Raises InvalidArgument for a time that no wait could take."""
    if not isinstance(timeout, Real) or not 0 < timeout < 1e9:
        raise invalid(argument, "seconds, more than 0 and less than 1e9", repr(timeout))
    return float(timeout)
