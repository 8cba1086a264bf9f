"""Totals that low-latency calls add up on the device, for `LowLatency.metrics`."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..arrays import NUMPY


class CallTotals:
    """Rows received per local expert, their bytes, choices lost, and cycles waited for each rank.

    Kernels count rows in 32 bits and never clear them, one array per size of a row. `read` adds
    what they gained since it was last called, so a total is right if no expert gains 2^32 rows in
    between.
    """

    def __init__(
        self, device_index: int | None, experts: int, ranks: int, row_bytes: Iterable[int]
    ) -> None:
        """Allocates on a GPU, or on the host if `device_index` is None.

        Done before the first call: memory of a graph that is captured would be cleared by replays.

        Args:
            row_bytes: sizes that rows and their scales may have.
        """
        self.sizes = (experts, ranks)
        sizes = sorted(set(row_bytes))
        self._rows: dict[int, Any]
        self._waited: Any
        self._lost: Any
        if device_index is None:
            self._arrays: Any = NUMPY
            self._rows = {size: np.zeros(experts, np.int32) for size in sizes}
            self._waited, self._lost = np.zeros(ranks, np.int64), np.zeros(1, np.int64)
        else:
            import torch

            from ..torch_arrays import TORCH

            self._arrays, where = TORCH, f"cuda:{device_index}"
            self._rows = {
                size: torch.zeros(experts, dtype=torch.int32, device=where) for size in sizes
            }
            self._waited = torch.zeros(ranks, dtype=torch.int64, device=where)
            self._lost = torch.zeros(1, dtype=torch.int64, device=where)
            torch.cuda.synchronize(device_index)  # Calls on any stream add to them.
        self._lock = threading.Lock()
        self._seen = {size: np.zeros(experts, np.uint32) for size in sizes}
        self._total = {size: np.zeros(experts, np.int64) for size in sizes}

    def rows(self, row_bytes: int) -> Any:
        """[local experts] int32, as a call takes it."""
        return self._arrays.to_native(self._rows[row_bytes])

    @property
    def waited(self) -> Any:
        """[ranks] int64, as a call takes it."""
        return self._arrays.to_native(self._waited)

    def add_lost(self, lost: Any) -> None:
        """Adds a combine's lost choices, [tokens] int32, in the current stream of a GPU."""
        self._lost += lost.sum() if self._arrays is not NUMPY else int(lost.sum())

    def read(self) -> dict[str, Any]:
        """Returns the totals by their keys of `metrics`; waits for the current stream of a GPU."""
        with self._lock:
            waited = self._waited.tolist()
            for size, counted in self._rows.items():
                now = np.array(counted.tolist(), np.int64).astype(np.uint32)
                self._total[size] += now - self._seen[size]  # Modulo 2^32.
                self._seen[size] = now
            slowest = max(range(len(waited)), key=waited.__getitem__)
            return {
                "received_choices_by_expert": np.sum([*self._total.values()], axis=0).tolist(),
                "received_bytes": sum(size * int(rows.sum()) for size, rows in self._total.items()),
                "lost_choices": int(self._lost.tolist()[0]),
                "wait_cycles_by_peer": waited,
                "slowest_rank": slowest if waited[slowest] > 0 else None,
            }
