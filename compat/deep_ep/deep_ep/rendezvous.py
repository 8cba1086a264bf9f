"""Makes a world of the ranks of a group or of an MPI communicator, and determines its timeout."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

import tokenyard
from tokenyard.compat.hosts import gather_over_group, message_bytes, spans_hosts
from tokenyard.errors import invalid
from tokenyard.world import check_timeout
from tokenyard.world.rendezvous import from_mpi

TIMEOUT_S = 100.0
"""Default deadline of every wait in seconds, as in DeepEP."""
TIMEOUT_VARIABLE = "TOKENYARD_DEEP_EP_TIMEOUT"
"""Environment variable that overrides TIMEOUT_S."""


DOMAIN_VARIABLE = "TOKENYARD_DOMAIN"
"""Environment variable that says whose memory ranks map, on all their hosts."""


@contextmanager
def domains(allowed: bool) -> Iterator[None]:
    """Has worlds made within reach ranks of other hosts over the network alone, unless `allowed`.

    The environment's own word precedes.
    """
    if allowed or DOMAIN_VARIABLE in os.environ:
        yield
        return
    os.environ[DOMAIN_VARIABLE] = "host"
    try:
        yield
    finally:
        del os.environ[DOMAIN_VARIABLE]


def timeout_of(asked: float | None) -> float:
    """Returns the deadline in seconds: the caller's, or the environment's, or the default."""
    if asked is not None:
        return check_timeout(asked)
    text = os.environ.get(TIMEOUT_VARIABLE)
    if text is None:
        return TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        raise invalid(TIMEOUT_VARIABLE, "seconds in the environment", repr(text)) from None
    return check_timeout(seconds, TIMEOUT_VARIABLE)


def join_rendezvous(
    group: dist.ProcessGroup,
    device: str | None,
    arena_bytes: int,
    timeout: float,
    host_name: str | None = None,
    network: tokenyard.NetworkOptions | None = None,
    low_latency_bytes: int = 0,
) -> tokenyard.World:
    """Makes a world. Collective.

    Args:
        device: "cuda" or "host"; None for "cuda" if there are GPUs.
        low_latency_bytes: those among `arena_bytes` that are for low-latency calls. Messages to
            other hosts take more, which are added if there are several.
    """
    chosen = _chosen(device)
    if low_latency_bytes and spans_hosts(gather_over_group(group), host_name):
        arena_bytes += message_bytes(low_latency_bytes, chosen)
    world = tokenyard.World.from_torch(
        group,
        device=chosen,
        timeout=timeout,
        arena_bytes=arena_bytes,
        host_name=host_name,
        network=network,
    )
    assert world is not None  # All ranks of the group are in it.
    return world


def join_through_mpi(
    comm: Any,
    device: str | None,
    arena_bytes: int,
    timeout: float,
    host_name: str | None = None,
    network: tokenyard.NetworkOptions | None = None,
    low_latency_bytes: int = 0,
) -> tokenyard.World:
    """Makes a world of a communicator's ranks, as `join_rendezvous` does of a group's."""
    chosen = _chosen(device)
    place = from_mpi(comm)
    if low_latency_bytes and spans_hosts(comm.allgather, host_name):
        arena_bytes += message_bytes(low_latency_bytes, chosen)
    return tokenyard.World._at(
        place,
        device=chosen,
        timeout=timeout,
        arena_bytes=arena_bytes,
        host_name=host_name,
        network=network,
    )


def _chosen(device: str | None) -> str:
    chosen = device or ("cuda" if torch.cuda.is_available() else "host")
    if chosen == "cuda":
        torch.cuda.init()  # A process that has set no device uses the first one.
    return chosen
