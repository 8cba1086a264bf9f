"""None for lost ranks in torch's object collectives.

torch implements these in Python as two gathers, of sizes and of pickled bytes. A lost rank's part
of either is zeros, whenever the rank was lost, and no pickle is empty or begins with a zero byte.
So such a part becomes None instead of being unpickled.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

OUR_BACKENDS = {"tokenyard", "mooncake-cpu"}
"""The second is registered by compat/mooncake, upon the first's operations."""


def give_none_for_lost_ranks() -> None:
    """Makes `dist.all_gather_object` and `dist.gather_object` return None for lost ranks.

    Affects groups of our backends only. torch has no hook for this, so its unpickling function is
    wrapped.
    """
    unpickle = getattr(distributed_c10d, "_tensor_to_object", None)
    if unpickle is None or hasattr(unpickle, "__wrapped__"):
        return

    @functools.wraps(unpickle)
    def to_object(
        tensor: torch.Tensor, tensor_size: Any, group: Any, *more: Any, **named: Any
    ) -> Any:
        ours = dist.get_backend(group) in OUR_BACKENDS
        if ours and (int(tensor_size) == 0 or int(tensor.reshape(-1)[0]) == 0):
            return None
        return unpickle(tensor, tensor_size, group, *more, **named)

    distributed_c10d._tensor_to_object = to_object
