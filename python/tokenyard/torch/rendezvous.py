"""Rendezvous of a torch group's ranks in the group's own store.

The store holds the job's name and, unless the ranks bring their own, its secret, which rank 0
draws: that is as safe as the store, which torch neither encrypts nor guards. Every rendezvous has a
number, so that a job made again in the same store, or after a failed attempt, is another job.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ..secret import agreed_secret, offer_of, secret_in_environment
from . import build
from .jobs import TorchCollectives
from .options import Options


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
            store.set(f"{folder}secret/{rendezvous_point}", offer_of(own))
            store.set(f"{folder}meetings", str(rendezvous_point))
    secret = agreed_secret(own, store.get(f"{folder}secret/{rendezvous_point}").decode(), rank)
    begin = TorchCollectives.join if options.join else TorchCollectives.connect
    return begin(
        "",
        own_store=build.load().lend_store(store),
        secret=secret,
        rank=rank,
        size=size,
        local_rank=_local_rank(),
        job=f"torch/{purpose}{rendezvous_point}",
        timeout=timeout,
        **_chosen(options),
    )


def _local_rank() -> int | None:
    """Returns torch's current GPU, or the launcher's local rank; None if neither is known."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.current_device())
    local = os.environ.get("LOCAL_RANK", "")
    return int(local) if local.isdecimal() else None


def stay_alone(rank: int, size: int, options: Options, timeout: float) -> TorchCollectives:
    """Starts a job in which all other places are empty."""
    return TorchCollectives.alone(rank=rank, size=size, timeout=timeout, **_chosen(options))


def _chosen(options: Options) -> dict[str, Any]:
    names = (
        "size_max",
        "silence",
        "on_failure",
        "places",
        "eager_limit",
        "witness",
        "address",
        "host",
    )
    chosen = {name: getattr(options, name) for name in names}
    return {name: value for name, value in chosen.items() if value is not None}
