"""A rank's connection to the launch that started it, and the replacement of lost ranks."""

from __future__ import annotations

import pickle
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import _tokenyard

from ..errors import PeerTimeout, Unsupported, invalid
from .network import NetworkOptions
from .rendezvous import HeldPort

RENDEZVOUS_S = 120.0
"""Seconds for the rendezvous of a launch's ranks; separate from the program's own timeout, since
processes take long to start."""


@dataclass(frozen=True)
class RendezvousPoint:
    """Where the ranks of a world that includes new ones meet."""

    port: int
    job: str
    size: int
    slots: list[int]
    """[size] number of each rank of the world within the launch"""
    new_ranks: list[int]
    """Ranks of the world that the launch has to start."""


@dataclass(frozen=True)
class Launched:
    """A world's connection to the launch that started it."""

    home: Connection
    """Pipe to the launch."""
    slots: list[int]
    """[ranks] number of each rank of the world within the launch"""
    replaces: bool
    """Whether the launch starts replacements of lost ranks."""
    secret: str = field(repr=False)
    """Secret of the launch, which its ranks got by a pipe."""
    new: bool = False
    """Whether this rank replaced a lost one."""
    host_names: tuple[str, ...] = ()
    """[slots] name of the host that each rank counts as being on; empty if there is one host"""
    network: NetworkOptions | None = None
    """Options of the network between them."""

    def tell(self, kind: str, value: Any) -> None:
        """Sends the message (time, kind, value) to the launch."""
        self.home.send_bytes(pickle.dumps((time.monotonic_ns(), kind, value)))

    def without(self, gone: Sequence[int]) -> Launched:
        """Returns the connection of a world rebuilt without `gone`, and reports these ranks."""
        if gone:
            self.tell("left_out", [self.slots[rank] for rank in gone])
        staying = [slot for rank, slot in enumerate(self.slots) if rank not in gone]
        return replace(self, slots=staying, new=False)


class Replacing:
    """The survivors of a world while they replace lost ranks.

    Keeps its state if a step fails, so that they may try again.
    """

    def __init__(
        self,
        native: Any,
        rank: int,
        size: int,
        launched: Launched | None,
        settings: dict[str, Any],
    ) -> None:
        """Takes over a world.

        Args:
            native: the module's World; the first step closes it.
            rank, size: this rank's number and the size of that world.
            launched: its launch, if any.
            settings: device, timeout, arena size and network for the module's World.connect, and
                the names of all ranks' hosts.

        Raises:
            Unsupported: the launch does not start replacements.
        """
        if launched is None or not launched.replaces:
            asked, why = "replace", "only launch(..., on_death='replace') starts new processes"
            raise Unsupported(f"{asked}: {why}", asked=asked, why=why)
        self._native = native
        self._rank = rank
        self._size = size
        self._launched = launched
        self._settings = settings
        self._survivors = list(range(size))
        """[ranks of `_native`] number of each in the original world"""
        self._excused: set[int] = set()
        """Ranks that were named and stay, since they had waited for a lost one."""

    def replace(self, lost: Sequence[int]) -> tuple[Any, Launched]:
        """Leaves out lost ranks, has the launch start new ones, and connects. Collective."""
        named = set(lost) - self._excused
        gone = [at for at, rank in enumerate(self._survivors) if rank in named]
        if not gone and len(self._survivors) == self._size:
            raise invalid("lost", "the ranks that are to be replaced", "none")
        self._native = self._native.rebuild(gone, arena_bytes=_SMALL_ARENA_BYTES)
        left_out = self._native.left_out
        self._excused.update(self._survivors[at] for at in gone if at not in left_out)
        self._survivors = [rank for at, rank in enumerate(self._survivors) if at not in left_out]
        missing = [rank for rank in range(self._size) if rank not in self._survivors]
        held = HeldPort() if self._native.rank == 0 else None
        try:
            rendezvous_point = self._agree(held, missing)
            if held is not None:
                self._launched.tell("replace", rendezvous_point)
            native = join_rendezvous(
                rendezvous_point, self._rank, self._launched.secret, self._settings
            )
        except PeerTimeout:
            # It names a rank that did not come to this attempt. After any other failure the caller
            # may name the same ranks again.
            self._excused.clear()
            raise
        finally:
            if held is not None:
                held.release()
        self._native.close()
        return native, replace(self._launched, new=False)

    def _agree(self, held: HeldPort | None, missing: list[int]) -> RendezvousPoint:
        """Agrees on a rendezvous point, which the first survivor chooses."""
        said = b"" if held is None else pickle.dumps((held.number, secrets.token_hex(8)))
        first, *_ = self._native.all_gather(said, what="replace: where the new ranks are met")
        port, job = pickle.loads(first)
        return RendezvousPoint(port, job, self._size, self._launched.slots, missing)


_SMALL_ARENA_BYTES = 1 << 16
"""Arena bytes of the interim world, which only agrees on the next one."""


def join_rendezvous(
    rendezvous_point: RendezvousPoint, rank: int, secret: str, settings: dict[str, Any]
) -> Any:
    """Connects to a rendezvous point as `rank`; returns the module's World."""
    slot = rendezvous_point.slots[rank]
    names = settings["host_names"]
    given = {name: value for name, value in settings.items() if name != "host_names"}
    return _tokenyard.World.connect(
        host="127.0.0.1",
        port=rendezvous_point.port,
        rank=rank,
        size=rendezvous_point.size,
        local_rank=slot,
        host_name=names[slot] if names else "",
        job=rendezvous_point.job,
        secret=secret,
        rendezvous_s=max(RENDEZVOUS_S, settings["timeout_s"]),
        **given,
    )
