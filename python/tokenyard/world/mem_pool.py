"""A torch allocator over an arena. Imported only when a pool is requested."""

from __future__ import annotations

from typing import Any

import torch

import _tokenyard


def over_arena(native: Any) -> Any:
    """Returns a pool over the arena of the module's World; see `World.mem_pool`."""
    _tokenyard.lend_arena(native)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        _tokenyard.__file__, "tokenyard_allocate", "tokenyard_free"
    )
    pool: Any = torch.cuda.MemPool(allocator.allocator())
    pool.lender = allocator  # torch's pool does not keep it alive.
    return pool
