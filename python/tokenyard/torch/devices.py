"""The collectives on device tensors of one torch group, on a World of the group's ranks.

A group of all ranks of its job has a world of that job, which learns at once of a lost rank. Other
groups have a world of their own, whose ranks meet through the group.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
from typing import Any

import numpy as np

import _tokenyard

from ..collectives.group import Group
from ..device_collectives import DeviceCollectives
from ..errors import Error, invalid
from ..world.network import native_network
from ..world.rendezvous import HeldPort, Place, host_address
from ..world.world import World
from .jobs import Job
from .options import Options

CARD_BYTES = 1024
"""Largest text by which a rank tells the others of its group where it is."""
SPARE_BYTES = 1 << 20
"""Bytes of the arena beyond those of the collectives."""


class GroupDevice:
    """A world of a torch group's ranks, and the collectives on it. Collective among the ranks."""

    def __init__(
        self,
        job: Job,
        group: Group,
        is_whole_job: bool,
        index: int | None,
        timeout: float,
        options: Options,
        before: GroupDevice | None,
    ) -> None:
        lost = sorted(set(range(group.size)) - set(group.active_ranks()))
        if lost and (not is_whole_job or options.places == "compact"):
            expected = "a process in every place, for tensors of a device: `replace` lost ranks"
            raise invalid("group", expected, f"empty places {lost}")
        needed = DeviceCollectives.memory(ranks=group.size) + SPARE_BYTES
        arena_bytes = max(needed, options.device_bytes)
        if is_whole_job:
            device = "host" if index is None else f"cuda:{index}"
            native = job.collectives._native.world(
                device=device,
                timeout_s=timeout,
                arena_bytes=arena_bytes,
                network=native_network(None),
            )
            self.world = World(native, "host" if index is None else "cuda")
        else:
            self.world = _world_of(group, index, timeout, arena_bytes)
        self.index = index
        again = options.keep_inputs and is_whole_job
        self.collectives: DeviceCollectives = DeviceCollectives(
            self.world,
            keep_inputs=options.keep_inputs,
            on_failure=options.on_failure if again else "raise",
            _before=None if before is None else before.collectives,
        )
        self.capsule: Any = _tokenyard.device_capsule(self.collectives._native)

    def wait(self) -> None:
        """Waits for all calls, and raises the error of one that failed."""
        stream = 0
        if self.index is not None:
            import torch

            torch.cuda.synchronize(self.index)
            stream = torch.cuda.current_stream(self.index).cuda_stream
        _tokenyard.await_device(self.capsule, stream=stream)

    def retire(self) -> None:
        """Makes C++ ask for others before its next call; works keep these until they are done."""
        with contextlib.suppress(Error):  # A call that does not end has not ended well.
            _tokenyard.retire_device(self.capsule)
        self.world.close()


def _world_of(group: Group, index: int | None, timeout: float, arena_bytes: int) -> World:
    """Makes a world of a group's ranks. The first one's secret travels by the job's own links."""
    held = HeldPort() if group.rank == 0 else None
    try:
        offer = None if held is None else (held.number, secrets.token_hex(8), secrets.token_hex(16))
        card = json.dumps([socket.gethostname(), host_address(), offer]).encode()
        mine = np.zeros(CARD_BYTES, np.uint8)
        mine[: len(card)] = np.frombuffer(card, np.uint8)
        cards = np.zeros((group.size, CARD_BYTES), np.uint8)
        group.all_gather(mine, cards, timeout=timeout).wait()
        told = [json.loads(bytes(one).rstrip(b"\0")) for one in cards]
        hosts = [host for host, *_ in told]
        _, address, (port, job, secret) = told[0]
        place = Place(
            host="127.0.0.1" if len(set(hosts)) == 1 else address,
            port=port,
            rank=group.rank,
            size=group.size,
            local_rank=group.rank if index is None else index,
            job=job,
            secret=secret,
        )
        device = "host" if index is None else "cuda"
        return World._at(place, device=device, timeout=timeout, arena_bytes=arena_bytes)
    finally:
        if held is not None:
            held.release()
