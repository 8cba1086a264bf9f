"""Adapts torch's tables to a job that has grown.

Newer torch versions ask a group's backend for its size. Older ones fix the size of a group when it
is made: there a new default group replaces the old one, whose calls then raise.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from . import build

CPU = torch.device("cpu")


def group_of(backend_state: Any) -> dist.ProcessGroup | None:
    """Returns torch's group of a state; None while it is being made, and once it is destroyed."""
    # A replaced default group stays in the map, so that torch can report its errors.
    known = dist.distributed_c10d._world.pg_map
    for group in sorted(known, key=lambda one: one is not dist.group.WORLD):
        if (
            CPU in group._device_types
            and build.load().state_of(group._get_backend(CPU)) is backend_state
        ):
            return group
    return None


def follow_growth(backend_state: Any) -> None:
    """Resizes torch's group to the number of ranks of its state, or replaces it."""
    group = group_of(backend_state)
    if group is None:
        return
    module = build.load()
    if hasattr(module, "resize"):
        module.resize(group._get_backend(CPU), len(backend_state.global_ranks))
    if group.size() != len(backend_state.global_ranks):
        group = take_place_of(group, backend_state)
    dist.distributed_c10d._world.pg_group_ranks[group] = {
        rank: rank for rank in backend_state.global_ranks
    }


def take_place_of(old: dist.ProcessGroup, backend_state: Any) -> dist.ProcessGroup:
    """Replaces a default group that cannot grow by a new one of the state's size."""
    c10d: Any = dist.distributed_c10d
    world = c10d._world
    ranks = len(backend_state.global_ranks)
    _, store = world.pg_map[old]
    group = dist.ProcessGroup(store, backend_state.rank, ranks)
    kind = dist.ProcessGroup.BackendType.CUSTOM
    group._register_backend(CPU, kind, backend_state.backend())
    group._set_default_backend(kind)
    name = world.pg_names[old]
    group._set_group_name(name)
    group._set_group_desc("default_pg")
    tables: tuple[dict[Any, Any], ...] = (
        world.pg_map,
        world.pg_names,
        world.pg_group_ranks,
        world.pg_backend_config,
        world.pg_to_tag,
    )
    for table in tables:
        if old in table:
            table[group] = table[old]
    for tagged in world.tags_to_pg.values():
        tagged[:] = [group if one is old else one for one in tagged]
    c10d._unregister_process_group(name)
    c10d._register_process_group(name, group)
    build.load().retire(
        old._get_backend(CPU), f"dist.group.WORLD, which has {ranks} ranks since the job has grown"
    )
    c10d._update_default_pg(group)
    return group


def move_backend(backend_state: Any) -> None:
    """Moves torch's group to its state's current job."""
    group = group_of(backend_state)
    if group is not None:
        build.load().move_to(group._get_backend(CPU), backend_state._capsule())
        if group.size() < len(backend_state.global_ranks):
            follow_growth(backend_state)
