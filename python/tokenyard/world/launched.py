"""A rank's part in a launch of processes: what it tells the launch, and how new ranks join it."""

from __future__ import annotations

import pickle
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import _tokenyard

from ..errors import Unsupported, invalid
from .rendezvous import HeldPort

RENDEZVOUS_S = 120.0
"""For the ranks of a launch to come together: processes take their time to start, which is no
deadline of the program's own."""


@dataclass(frozen=True)
class RendezvousPoint:
    """Where a world with new ranks comes together."""

    port: int
    job: str
    size: int
    slots: list[int]
    """[size] The number of each rank of the world within the launch."""
    new_ranks: list[int]
    """Ranks of the world that the launch is to start."""


@dataclass(frozen=True)
class Launched:
    """What a world knows of the launch that made it."""

    home: Connection
    slots: list[int]
    """[ranks] The number of each rank of the world within the launch."""
    replaces: bool
    """Whether the launch starts processes in the place of lost ones."""
    new: bool = False
    """Whether this rank took the place of a lost one."""

    def tell(self, kind: str, value: Any) -> None:
        """Sends home what the launch reads as (time, kind, value)."""
        self.home.send_bytes(pickle.dumps((time.monotonic_ns(), kind, value)))

    def without(self, gone: Sequence[int]) -> Launched:
        """The same for a world that was rebuilt without some ranks, which the launch is told."""
        if gone:
            self.tell("left_out", [self.slots[rank] for rank in gone])
        staying = [slot for rank, slot in enumerate(self.slots) if rank not in gone]
        return replace(self, slots=staying, new=False)


class Replacing:
    """The survivors of a world on their way to a whole one. Stays as it is if a step fails, so that
    they may try again."""

    def __init__(
        self,
        native: Any,
        rank: int,
        size: int,
        launched: Launched | None,
        settings: dict[str, Any],
    ) -> None:
        """`native`: the module's World, which the first step closes. `settings`: what the module's
        World.connect takes, except for where and whom to meet."""
        if launched is None or not launched.replaces:
            asked, why = "replace", "only launch(..., on_death='replace') starts new processes"
            raise Unsupported(f"{asked}: {why}", asked=asked, why=why)
        self._native = native
        self._rank = rank
        self._size = size
        self._launched = launched
        self._settings = settings
        self._survivors = list(range(size))
        """[ranks of `_native`] Their numbers in the world."""

    def replace(self, lost: Sequence[int]) -> tuple[Any, Launched]:
        """Leaves out the lost ranks, has the launch start others, and meets them. Collective."""
        gone = [at for at, rank in enumerate(self._survivors) if rank in lost]
        staying = [rank for rank in self._survivors if rank not in lost]
        missing = [rank for rank in range(self._size) if rank not in staying]
        if not missing:
            raise invalid("lost", "the ranks that are to be replaced", "none")
        self._native = self._native.rebuild(gone, arena_bytes=_SMALL_ARENA_BYTES)
        self._survivors = staying
        held = HeldPort() if self._native.rank == 0 else None
        try:
            rendezvous_point = self._agree(held, missing)
            if held is not None:
                self._launched.tell("replace", rendezvous_point)
            native = join_rendezvous(rendezvous_point, self._rank, self._settings)
        finally:
            if held is not None:
                held.release()
        self._native.close()
        return native, replace(self._launched, new=False)

    def _agree(self, held: HeldPort | None, missing: list[int]) -> RendezvousPoint:
        """The first survivor says where."""
        said = b"" if held is None else pickle.dumps((held.number, secrets.token_hex(8)))
        first, *_ = self._native.all_gather(said, what="replace: where the new ranks are met")
        port, job = pickle.loads(first)
        return RendezvousPoint(port, job, self._size, self._launched.slots, missing)


_SMALL_ARENA_BYTES = 1 << 16
"""Of a world that only agrees on another one."""


def join_rendezvous(rendezvous_point: RendezvousPoint, rank: int, settings: dict[str, Any]) -> Any:
    """The module's World of a meeting."""
    return _tokenyard.World.connect(
        host="127.0.0.1",
        port=rendezvous_point.port,
        rank=rank,
        size=rendezvous_point.size,
        local_rank=rendezvous_point.slots[rank],
        job=rendezvous_point.job,
        rendezvous_s=max(RENDEZVOUS_S, settings["timeout_s"]),
        **settings,
    )
