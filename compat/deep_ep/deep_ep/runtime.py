"""`Buffer.runtime`: what callers ask of DeepEP's C++ side, as far as it has a meaning here."""

from __future__ import annotations

from typing import Any

import tokenyard
from tokenyard.errors import invalid


class Runtime:
    """All ranks reach one another by loads and stores, so there is one rank of RDMA: number 0."""

    def __init__(self, world: tokenyard.World) -> None:
        self._device_index = world.device_index
        self._available = True

    def close(self) -> None:
        """Not DeepEP's: the buffer was destroyed."""
        self._available = False

    def is_available(self) -> bool:
        """Whether calls may be made: from the buffer's making on until it is destroyed."""
        return self._available

    def get_rdma_rank(self) -> int:
        return 0

    def get_num_rdma_ranks(self) -> int:
        return 1

    def get_root_rdma_rank(self, is_global: bool) -> int:
        return 0

    def get_local_device_id(self) -> int:
        """Index of this rank's GPU; -1 on the host, as torch numbers the CPU."""
        return -1 if self._device_index is None else self._device_index

    def sync(self, *handles: Any) -> None:
        """Returns at once: the ranks met when the buffer was made, and no handles are needed.

        Raises:
            InvalidArgument: the buffer was destroyed.
        """
        if not self._available:
            raise invalid("runtime", "that of a buffer which is not destroyed", "a destroyed one")
