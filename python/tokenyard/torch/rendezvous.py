"""Rendezvous of a torch group's ranks in the group's own store.

The store holds the job's name and, unless the ranks bring their own, its secret, which rank 0
draws: that is as safe as the store, which torch neither encrypts nor guards. Every rendezvous has a
number, so that a job made again in the same store, or after a failed attempt, is another job.
"""

from __future__ import annotations

import secrets
from typing import Any

from ..errors import invalid
from ..secret import SECRET_FILE_VARIABLE, secret_in_environment
from . import build
from .jobs import TorchCollectives
from .options import Options

BROUGHT = "-"
"""In place of a drawn secret: every rank has its own, from its environment."""


def join_rendezvous(
    store: Any, rank: int, size: int, options: Options, timeout: float, purpose: str = ""
) -> TorchCollectives:
    """Starts a job with the ranks that rendezvous for the same purpose.

    With `options.join`, takes a lost rank's place in that job instead.
    """
    folder = f"tokenyard/{purpose}"
    own = secret_in_environment()
    if options.join:
        rendezvous_point = int(store.get(f"{folder}meetings"))
    else:
        rendezvous_point = store.add(f"{folder}meetings/{rank}", 1)
        if rank == 0:
            drawn = BROUGHT if own is not None else secrets.token_hex(16)
            store.set(f"{folder}secret/{rendezvous_point}", drawn)
            store.set(f"{folder}meetings", str(rendezvous_point))
    secret = _agreed(own, store.get(f"{folder}secret/{rendezvous_point}").decode(), rank)
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


def _agreed(own: str | None, offered: str, rank: int) -> str:
    """Returns the secret: this rank's own where rank 0 has brought its own, too, else the drawn."""
    if own is None and offered == BROUGHT:
        raise invalid(SECRET_FILE_VARIABLE, "the job's secret, as rank 0 has one", "nothing", rank)
    if own is not None and offered != BROUGHT:
        expected = "nothing, as on rank 0, which has drawn a secret; set it on all ranks or on none"
        raise invalid(SECRET_FILE_VARIABLE, expected, "a secret", rank)
    return offered if own is None else own


def stay_alone(rank: int, size: int, options: Options, timeout: float) -> TorchCollectives:
    """Starts a job in which all other places are empty."""
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
