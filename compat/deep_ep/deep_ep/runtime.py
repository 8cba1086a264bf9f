"""`Buffer.runtime`: the calls of DeepEP's C++ object that have a meaning here."""

from __future__ import annotations

from typing import Any

import tokenyard
from tokenyard.errors import invalid

from .rdma_ranks import RdmaRanks


class Runtime:
    """Stands for DeepEP's C++ object. A host is an RDMA rank."""

    def __init__(self, world: tokenyard.World, hosts: RdmaRanks) -> None:
        self._device_index = world.device_index
        self._hosts = hosts
        self._available = True

    def close(self) -> None:
        """Marks the buffer as destroyed; not part of DeepEP's API."""
        self._available = False

    def is_available(self) -> bool:
        """Returns whether calls are allowed: until the buffer is destroyed."""
        return self._available

    def get_rdma_rank(self) -> int:
        """Returns the number of this rank's host."""
        return self._hosts.mine

    def get_num_rdma_ranks(self) -> int:
        """Returns the number of hosts."""
        return self._hosts.count

    def get_root_rdma_rank(self, is_global: bool) -> int:
        """Returns the first host's number; with `is_global` its rank on this rank's rail."""
        return self._hosts.root if is_global else 0

    def get_local_device_id(self) -> int:
        """Returns the index of this rank's GPU; -1 on the host, as torch numbers the CPU."""
        return -1 if self._device_index is None else self._device_index

    def sync(self, *handles: Any) -> None:
        """Returns at once: the ranks met when the buffer was made, and no handles are needed.

        Raises:
            InvalidArgument: the buffer was destroyed.
        """
        if not self._available:
            raise invalid("runtime", "that of a buffer which is not destroyed", "a destroyed one")
