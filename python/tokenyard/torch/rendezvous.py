"""How the ranks of a torch group become a job: they meet in the group's own store.

The store tells the job's name and secret. Every meeting has a number, so that a job which is made
again in the same store, or after an attempt that failed, is another job.
"""

from __future__ import annotations

import secrets
from typing import Any

from . import build
from .jobs import TorchCollectives
from .options import Options


def join_rendezvous(
    store: Any, rank: int, size: int, options: Options, timeout: float, purpose: str = ""
) -> TorchCollectives:
    """Begins a job with the other ranks that come for the same purpose. Or, with `options.join`,
    takes a lost rank's place in it."""
    folder = f"tokenyard/{purpose}"
    if options.join:
        rendezvous_point = int(store.get(f"{folder}meetings"))
    else:
        rendezvous_point = store.add(f"{folder}meetings/{rank}", 1)
        if rank == 0:
            store.set(f"{folder}secret/{rendezvous_point}", secrets.token_hex(16))
            store.set(f"{folder}meetings", str(rendezvous_point))
    secret = store.get(f"{folder}secret/{rendezvous_point}").decode()
    begin = TorchCollectives.join if options.join else TorchCollectives.connect
    return begin(
        "",
        own_store=build.load().lend_store(store),
        secret=secret,
        rank=rank,
        size=size,
        job=f"torch/{purpose}{rendezvous_point}",
        timeout=timeout,
        **_chosen(options),
    )


def stay_alone(rank: int, size: int, options: Options, timeout: float) -> TorchCollectives:
    """A job of which every other place is empty."""
    return TorchCollectives.alone(rank=rank, size=size, timeout=timeout, **_chosen(options))


def _chosen(options: Options) -> dict[str, Any]:
    names = (
        "size_max",
        "silence",
        "on_failure",
        "places",
        "witness",
        "address",
        "host",
        "interconnect",
    )
    return {name: getattr(options, name) for name in names}
