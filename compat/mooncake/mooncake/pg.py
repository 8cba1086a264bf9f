"""Mooncake's `mooncake.pg` over Tokenyard: process groups whose ranks may be lost and replaced.

    import torch.distributed as dist
    from mooncake import pg

    dist.init_process_group("mooncake-cpu", pg_options=pg.MooncakeBackendOptions(4))

Importing it registers both backends. A group is `mooncake.pg_group.MooncakeProcessGroup`, over a
group of a `tokenyard.Collectives`; the first import on a machine compiles `tokenyard.torch`.

| Name | What it calls |
|---|---|
| backend `mooncake-cpu` | Tokenyard's backend for torch, with `on_failure="exclude"` |
| backend `mooncake` | raises Unsupported: operations on tensors of GPUs are not offered |
| `MooncakeBackendOptions` | `size_max`, `join` and `alone_first` of `tokenyard.torch.Options` |
| `get_active_ranks`, `get_current_epoch` | `active_ranks`, `epoch` |
| `get_peer_state`, `get_num_synced_ranks` | `active_ranks`, `waiting_ranks`; no communication |
| `activate_ranks`, `recover_ranks` | `replace` for a lost rank, `grow` for a new one |
| `deactivate_ranks` | `evict` for another rank that runs, `leave` for this one |
| `join_group` | `Collectives.join` |
| `sync_after_failure` | `recover` |
| `get_local_success`, `get_failed_ranks_hint` | `tokenyard.torch.failed_ranks` |
| `set_host_ip`, `set_collective_timeout_us` | `address` and `silence` of groups made later |
| `extend_group_size_to` | checks its argument only, as in Mooncake |
| `set_fault_reconciliation_window_us` | checks its argument only: survivors agree at once |
| `set_device_filter`, `set_transfer_engine`, `set_p2p_timeout_us` | raise Unsupported |
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

import tokenyard.torch  # noqa: F401  Builds the C++ backend, if need be.
from tokenyard.errors import Unsupported, invalid
from tokenyard.sizes import size_of

from .pg_group import MooncakeProcessGroup, membership_of
from .pg_options import (
    MooncakeBackendOptions,
    ProposalStatus,
    ProposeViewUpdateResponse,
    SyncAfterFailureResponse,
    SyncAfterFailureStatus,
    set_collective_timeout_us,
    set_device_filter,
    set_fault_reconciliation_window_us,
    set_host_ip,
    set_p2p_timeout_us,
    set_transfer_engine,
)
from .pg_work import MooncakeWork

ViewUpdateStatus = ProposalStatus
"""The name of ProposalStatus in older versions of Mooncake."""

__all__ = [
    "MooncakeBackendOptions",
    "ProposalStatus",
    "ProposeViewUpdateResponse",
    "SyncAfterFailureResponse",
    "SyncAfterFailureStatus",
    "ViewUpdateStatus",
    "activate_ranks",
    "createMooncakeBackend",
    "createMooncakeCpuBackend",
    "deactivate_ranks",
    "extend_group_size_to",
    "get_active_ranks",
    "get_current_epoch",
    "get_failed_ranks_hint",
    "get_local_success",
    "get_num_synced_ranks",
    "get_peer_state",
    "join_group",
    "recover_ranks",
    "set_collective_timeout_us",
    "set_device_filter",
    "set_fault_reconciliation_window_us",
    "set_host_ip",
    "set_p2p_timeout_us",
    "set_transfer_engine",
    "sync_after_failure",
]


def createMooncakeCpuBackend(  # noqa: N802
    described: Any, options: MooncakeBackendOptions | None
) -> MooncakeProcessGroup:
    """Makes a process group of backend `mooncake-cpu`; torch calls it."""
    if options is None:
        options = MooncakeBackendOptions(0)
    if not isinstance(options, MooncakeBackendOptions):
        raise invalid("pg_options", "MooncakeBackendOptions", type(options).__name__)
    return MooncakeProcessGroup(described, options)


def createMooncakeBackend(  # noqa: N802
    described: Any, options: MooncakeBackendOptions | None
) -> MooncakeProcessGroup:
    """Raises Unsupported: operations on tensors of GPUs are not offered."""
    why = "Tokenyard's collectives work on tensors of the CPU: make the group with mooncake-cpu"
    raise Unsupported(f"backend mooncake: {why}", asked="backend mooncake", why=why)


def get_active_ranks(backend: dist.ProcessGroup) -> torch.Tensor:
    """Returns the tensor that shows the membership: 1 for a rank that takes part.

    It is kept up to date by itself; it is the options' `active_ranks` if that was given.
    """
    membership = membership_of(backend)
    membership.refresh()
    return membership.active_ranks


def get_num_synced_ranks(backend: dist.ProcessGroup) -> int:
    """Returns the number of ranks that are active, or wait to be."""
    return membership_of(backend).synced_ranks()


def get_peer_state(backend: dist.ProcessGroup, ranks: Sequence[int]) -> list[bool]:
    """Returns for each rank whether it is active, or waits to be. Sends nothing to other ranks."""
    return membership_of(backend).peer_states(ranks)


def activate_ranks(backend: dist.ProcessGroup, ranks: Sequence[int]) -> ProposeViewUpdateResponse:
    """Waits until processes that join hold the places of `ranks`, and admits them.

    In the first group of a job, usually the default group, one member's call is enough. A group
    that is not the first grows when all its members have called it.
    """
    return membership_of(backend).activate(ranks)


def recover_ranks(backend: dist.ProcessGroup, ranks: Sequence[int]) -> ProposeViewUpdateResponse:
    """Does what `activate_ranks` does."""
    return membership_of(backend).activate(ranks)


def deactivate_ranks(backend: dist.ProcessGroup, ranks: Sequence[int]) -> ProposeViewUpdateResponse:
    """Takes ranks out of the group; they may come back by `join_group`.

    A rank that runs leaves the whole job, so its call belongs to the default group; there, the
    ranks that remain must be able to outvote it. Its other operations raise Fenced.
    """
    return membership_of(backend).deactivate(ranks)


def join_group(backend: dist.ProcessGroup) -> None:
    """Enters the running group; waits until its members activate this rank.

    For a group that was made with `is_extension`, or whose rank was deactivated. Join the default
    group first.

    Raises:
        PeerTimeout: nobody activated this rank within the group's timeout.
    """
    membership_of(backend).join()


def sync_after_failure(backend: dist.ProcessGroup) -> SyncAfterFailureResponse:
    """Waits until the survivors of failures so far agree on the membership."""
    return membership_of(backend).sync_after_failure()


def get_current_epoch(backend: dist.ProcessGroup) -> int:
    """Returns the number of the membership, which rises with every change."""
    return membership_of(backend).epoch()


def get_failed_ranks_hint(work: dist.Work) -> torch.Tensor:
    """Returns a 1 for each rank that was active before an operation and is missing from it."""
    return _ours(work).hint()


def get_local_success(work: dist.Work) -> bool:
    """Returns whether an operation has all data of the ranks that were active before it."""
    return not _ours(work).failed_slots()


def extend_group_size_to(backend: dist.ProcessGroup, size: int) -> None:
    """Warns; as in Mooncake, a group grows when a rank joins, up to `max_group_size`."""
    size_of("size", size, smallest=1, largest=membership_of(backend).places)
    warnings.warn(
        "extend_group_size_to has no effect: a group grows when ranks join",
        DeprecationWarning,
        stacklevel=2,
    )


def _ours(work: Any) -> MooncakeWork:
    if not isinstance(work, MooncakeWork):
        raise invalid("work", "an operation of backend mooncake-cpu", repr(work))
    return work


for _name, _creator, _device in (
    ("mooncake-cpu", createMooncakeCpuBackend, "cpu"),
    ("mooncake", createMooncakeBackend, "cuda"),
):
    if _name not in dist.Backend.backend_list:
        dist.Backend.register_backend(_name, _creator, extended_api=True, devices=[_device])
