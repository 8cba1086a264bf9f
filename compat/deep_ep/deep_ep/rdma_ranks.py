"""The hosts of a buffer's ranks. DeepEP numbers them, too, and calls a host's number RDMA rank."""

from __future__ import annotations

import torch

import tokenyard


class RdmaRanks:
    """Which ranks share a host."""

    def __init__(self, world: tokenyard.World) -> None:
        topology = world.topology
        self.count = topology.hosts
        """Number of hosts."""
        self.of_rank = topology.host_of
        """[ranks] host of each rank."""
        self.mine = self.of_rank[world.rank]
        self.local = self.of_rank[: world.rank].count(self.mine)
        """Place of this rank on its host: the rail on which it meets a rank of each other host."""
        index = world.device_index
        device = torch.device("cpu") if index is None else torch.device("cuda", index)
        self.on_device = torch.tensor(self.of_rank, dtype=torch.int64, device=device)
        """`of_rank`, there before a CUDA graph captures a call that reads it."""

    def on_host(self, host: int) -> list[int]:
        """Returns the ranks of a host."""
        return [rank for rank, of in enumerate(self.of_rank) if of == host]

    @property
    def largest(self) -> int:
        """The number of ranks of the largest host."""
        return max(map(self.of_rank.count, self.of_rank))

    @property
    def root(self) -> int:
        """The rank of the first host on this rank's rail."""
        first = self.on_host(0)
        return first[self.local % len(first)]
