"""A rank's connection to the launch that started it."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import _tokenyard

from .network import NetworkOptions, native_network

RENDEZVOUS_S = 120.0
"""Seconds for the rendezvous of a launch's ranks; separate from the program's own timeout, since
processes take long to start."""


@dataclass(frozen=True)
class Launched:
    """A world's connection to the launch that started it."""

    home: Connection
    """Pipe to the launch."""
    port: int
    """Port of the store, which the launch serves."""
    ranks: int
    """Number of the launch's ranks, which are the places of the job."""
    slots: list[int]
    """[ranks of the world] number of each within the launch"""
    replaces: bool
    """Whether the launch starts replacements of lost ranks."""
    secret: str = field(repr=False)
    """Secret of the launch, which its ranks got by a pipe."""
    new: bool = False
    """Whether this rank replaced a lost one."""
    host_names: tuple[str, ...] = ()
    """[ranks] name of the host that each rank counts as being on; empty if there is one host"""
    network: NetworkOptions | None = None
    """Options of the network between them."""

    def tell(self, kind: str, value: Any) -> None:
        """Sends the message (time, kind, value) to the launch."""
        self.home.send_bytes(pickle.dumps((time.monotonic_ns(), kind, value)))

    def tell_left_out(self, slots: Iterable[int]) -> None:
        """Tells the launch that the others go on without these."""
        if gone := sorted(slots):
            self.tell("left_out", gone)

    def without(self, gone: Sequence[int]) -> Launched:
        """Returns the connection of a world rebuilt without `gone`, and reports these ranks."""
        self.tell_left_out(self.slots[rank] for rank in gone)
        staying = [slot for rank, slot in enumerate(self.slots) if rank not in gone]
        return replace(self, slots=staying, new=False)

    def connect(self, slot: int, settings: dict[str, Any]) -> Any:
        """Founds the launch's job as this rank, or joins it; returns the module's World."""
        return _tokenyard.World.connect(
            host="127.0.0.1",
            port=self.port,
            rank=slot,
            size=self.ranks,
            local_rank=slot,
            host_name=self.host_names[slot] if self.host_names else "",
            job="launch",
            secret=self.secret,
            rendezvous_s=max(RENDEZVOUS_S, settings["timeout_s"]),
            network=native_network(self.network),
            joins=self.slots if self.new else [],
            **settings,
        )
