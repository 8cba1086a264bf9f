"""torch's allocator over an arena. Imported only by who asks for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import _tokenyard

if TYPE_CHECKING:
    from .world import World


def over_arena(world: World) -> Any:
    """See `World.mem_pool`."""
    _tokenyard.lend_arena(world._native)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        _tokenyard.__file__, "tokenyard_allocate", "tokenyard_free"
    )
    pool: Any = torch.cuda.MemPool(allocator.allocator())
    pool.lender = allocator  # torch's pool does not keep it.
    return pool
