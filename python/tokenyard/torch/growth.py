"""How torch's tables follow a job whose ranks have become more.

Newer torches ask a group's backend how many ranks there are. Older ones keep the size that a group
was made with: there a new default group takes the place of the one before, which says so.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from . import build

CPU = torch.device("cpu")


def group_of(backend_state: Any) -> dist.ProcessGroup | None:
    """torch's group of a seat; None while it is being made, and once it is destroyed."""
    # A default group that was replaced here is still known, so that torch can tell of its errors.
    known = dist.distributed_c10d._world.pg_map
    for group in sorted(known, key=lambda one: one is not dist.group.WORLD):
        if (
            CPU in group._device_types
            and build.load().state_of(group._get_backend(CPU)) is backend_state
        ):
            return group
    return None


def follow_growth(backend_state: Any) -> None:
    """The seat's group has as many ranks as the seat says."""
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
    """A default group of the seat's size, in place of one that cannot grow."""
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
    """The seat's group works in the job that the seat is in now."""
    group = group_of(backend_state)
    if group is not None:
        build.load().move_to(group._get_backend(CPU), backend_state._capsule())
        if group.size() < len(backend_state.global_ranks):
            follow_growth(backend_state)
