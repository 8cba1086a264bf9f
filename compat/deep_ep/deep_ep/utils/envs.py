"""Initialization and checks of the environment for DeepEP's tests."""

from __future__ import annotations

import inspect
import os
import random
from typing import Any

import torch
import torch.distributed as dist

_seeds = {"global": 0, "local": 0}
"""Process-wide, like the random generators."""


def init_seed(global_seed: int) -> None:
    """Seeds this rank's random generators, differently on each rank."""
    _seeds.update({"global": global_seed, "local": global_seed + dist.get_rank()})
    torch.manual_seed(_seeds["local"])
    random.seed(_seeds["local"])


def get_global_seed() -> int:
    """Returns the argument of `init_seed`."""
    return _seeds["global"]


def get_local_seed() -> int:
    """Returns the seed of this rank's generators."""
    return _seeds["local"]


def dist_print(s: str = "", once_in_node: bool = False) -> None:
    """Prints on every rank, or on the first one; all ranks wait for it."""
    if not once_in_node or dist.get_rank() == 0:
        print(s, flush=True)
    dist.barrier()


def init_dist(
    local_rank: int, num_local_ranks: int, seed: int = 0
) -> tuple[int, int, dist.ProcessGroup]:
    """Joins the job that the environment describes, with one process per rank.

    Reads MASTER_ADDR and MASTER_PORT, the number of nodes from WORLD_SIZE, and this node's number
    from RANK. With GPUs, GPU `local_rank` becomes the default device; without, ranks use gloo.

    Returns:
        This rank's number, the number of ranks, and a group of all.
    """
    nodes = int(os.environ.get("WORLD_SIZE", "1"))
    node = int(os.environ.get("RANK", "0"))
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = os.environ.get("MASTER_PORT", "8361")
    on_gpu = torch.cuda.is_available()
    options: dict[str, Any] = dict(
        backend="nccl" if on_gpu else "gloo",
        init_method=f"tcp://{host}:{port}",
        world_size=nodes * num_local_ranks,
        rank=node * num_local_ranks + local_rank,
    )
    if on_gpu:
        torch.cuda.set_device(local_rank)
        if "device_id" in inspect.signature(dist.init_process_group).parameters:
            options["device_id"] = torch.device("cuda", local_rank)
    dist.init_process_group(**options)
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("cuda" if on_gpu else "cpu")
    init_seed(seed)
    return (
        dist.get_rank(),
        dist.get_world_size(),
        dist.new_group(list(range(dist.get_world_size()))),
    )


def get_physical_domain_size(group: dist.ProcessGroup) -> tuple[int, int]:
    """Returns (1, ranks of the group), as on one host: only a buffer knows its hosts."""
    return 1, group.size()


def get_logical_domain_size(
    group: dist.ProcessGroup, allow_hybrid_mode: bool = True
) -> tuple[int, int]:
    """Returns (1, ranks of the group), like `get_physical_domain_size`."""
    return 1, group.size()


def check_nvlink_connections(group: dist.ProcessGroup) -> None:
    """Does nothing: a Buffer detects itself how its ranks reach one another."""


def check_torch_deterministic() -> None:
    """Does nothing: no call relies on memory that torch may fill meanwhile."""
