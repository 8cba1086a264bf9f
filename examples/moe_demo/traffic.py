"""The traffic of a run by host: a word goes once to each host that holds its experts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .layer import Shape
from .rank import RankReport


@dataclass(frozen=True)
class Traffic:
    """Rows of all dispatches. As many results come back."""

    crossing: np.ndarray
    """[hosts, hosts] rows from each host to each other one, as they cross the network; within a
    host, rows that its ranks store for one another and themselves."""
    by_rank: np.ndarray
    """[hosts, hosts] the same if a row crossed once per rank instead."""
    ranks_of: list[list[int]]
    """[hosts] ranks of each host."""
    row_bytes: int
    network_bytes: np.ndarray
    """[hosts, hosts] bytes that a network has counted; zeros where it is simulated."""

    @classmethod
    def of(cls, shape: Shape, reports: list[RankReport]) -> Traffic:
        host_of = np.array(reports[0].host_of)
        hosts = int(host_of.max()) + 1
        crossing, by_rank, counted = (np.zeros((hosts, hosts), np.int64) for _ in range(3))
        for rank, report in enumerate(reports):
            mine = host_of[rank]
            np.add.at(by_rank[:, mine], host_of, report.rows_from)
            np.add.at(counted[mine], host_of, report.network_bytes)
            hosts_of_words = host_of[report.chosen // shape.experts_per_rank]
            for host in range(hosts):
                crossing[mine, host] += (hosts_of_words == host).any(1).sum()
        np.fill_diagonal(crossing, by_rank.diagonal())
        ranks_of = [np.flatnonzero(host_of == host).tolist() for host in range(hosts)]
        return cls(crossing, by_rank, ranks_of, 2 * shape.hidden, counted)

    @property
    def hosts(self) -> int:
        return len(self.ranks_of)

    @property
    def far(self) -> int:
        """Rows that cross a network."""
        return int(self.crossing.sum() - self.crossing.trace())

    @property
    def far_by_rank(self) -> int:
        """Rows that would cross it if each rank got its own."""
        return int(self.by_rank.sum() - self.by_rank.trace())

    def sentence(self) -> str:
        text = f"{self.far} rows went between hosts, each once per host"
        if self.far < self.far_by_rank:
            text += f", where {self.far_by_rank} would have gone once per rank"
        return text + "."
