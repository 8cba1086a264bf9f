"""Objects of ranks that are lost.

torch's object collectives are Python over two gathers, of sizes and then of pickled bytes. A lost
rank's place in either holds zeros, wherever it was lost, and no pickle is empty or begins with a
zero. So what torch would unpickle there becomes None instead.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


def give_none_for_lost_ranks() -> None:
    """Lets `dist.all_gather_object` and `dist.gather_object` put None in the places of lost ranks.

    For groups of backend `tokenyard` only. torch has no hook for that: its function that unpickles
    is wrapped.
    """
    unpickle = getattr(distributed_c10d, "_tensor_to_object", None)
    if unpickle is None or hasattr(unpickle, "__wrapped__"):
        return

    @functools.wraps(unpickle)
    def to_object(
        tensor: torch.Tensor, tensor_size: Any, group: Any, *more: Any, **named: Any
    ) -> Any:
        ours = dist.get_backend(group) == "tokenyard"
        if ours and (int(tensor_size) == 0 or int(tensor.reshape(-1)[0]) == 0):
            return None
        return unpickle(tensor, tensor_size, group, *more, **named)

    distributed_c10d._tensor_to_object = to_object
