"""How the ranks of a torch group become a job: they meet in the group's own store.

The store tells the job's name and secret. Every meeting has a number, so that a job which is made
again in the same store, or after an attempt that failed, is another job.
"""

from __future__ import annotations

import secrets
from typing import Any

from ..collectives import Collectives
from . import build
from .options import Options


def meet(
    store: Any, rank: int, size: int, options: Options, timeout: float, purpose: str = ""
) -> Collectives:
    """Begins a job with the other ranks that come for the same purpose. Or, with `options.join`,
    takes a lost rank's place in it."""
    folder = f"tokenyard/{purpose}"
    if options.join:
        meeting = int(store.get(f"{folder}meetings"))
    else:
        meeting = store.add(f"{folder}meetings/{rank}", 1)
        if rank == 0:
            store.set(f"{folder}secret/{meeting}", secrets.token_hex(16))
            store.set(f"{folder}meetings", str(meeting))
    secret = store.get(f"{folder}secret/{meeting}").decode()
    begin = Collectives.join if options.join else Collectives.connect
    return begin(
        "",
        own_store=build.load().lend_store(store),
        secret=secret,
        rank=rank,
        size=size,
        job=f"torch/{purpose}{meeting}",
        size_max=options.size_max,
        timeout=timeout,
        silence=options.silence,
        on_failure=options.on_failure,
        witness=options.witness,
        address=options.address,
        host=options.host,
        interconnect=options.interconnect,
    )
