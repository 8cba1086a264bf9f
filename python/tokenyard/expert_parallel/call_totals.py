"""Totals that low-latency calls add up on the device, for `LowLatency.metrics`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ..arrays import NUMPY


class CallTotals:
    """Rows received per local expert, and cycles waited for each rank.

    Kernels count rows in 32 bits and never clear them. `read` adds what they gained since it was
    last called, so a total is right if no expert gains 2^32 rows in between.
    """

    def __init__(self, device_index: int | None, experts: int, ranks: int) -> None:
        """Allocates on a GPU, or on the host if `device_index` is None.

        Done before the first call: memory of a graph that is captured would be cleared by replays.
        """
        self.sizes = (experts, ranks)
        self._rows: Any
        self._waited: Any
        if device_index is None:
            self._arrays: Any = NUMPY
            self._rows, self._waited = np.zeros(experts, np.int32), np.zeros(ranks, np.int64)
        else:
            import torch

            from ..torch_arrays import TORCH

            self._arrays, where = TORCH, f"cuda:{device_index}"
            self._rows = torch.zeros(experts, dtype=torch.int32, device=where)
            self._waited = torch.zeros(ranks, dtype=torch.int64, device=where)
            torch.cuda.synchronize(device_index)  # Calls on any stream add to them.
        self._lock = threading.Lock()
        self._seen = np.zeros(experts, np.uint32)
        self._total = np.zeros(experts, np.int64)

    @property
    def rows(self) -> Any:
        """[local experts] int32, as a call takes it."""
        return self._arrays.to_native(self._rows)

    @property
    def waited(self) -> Any:
        """[ranks] int64, as a call takes it."""
        return self._arrays.to_native(self._waited)

    def read(self) -> dict[str, Any]:
        """Returns the totals by their keys of `metrics`; waits for the current stream of a GPU."""
        with self._lock:
            rows, waited = np.array(self._rows.tolist(), np.int64), self._waited.tolist()
            now = rows.astype(np.uint32)
            self._total += now - self._seen  # Modulo 2^32.
            self._seen = now
            slowest = max(range(len(waited)), key=waited.__getitem__)
            return {
                "received_choices_by_expert": self._total.tolist(),
                "wait_cycles_by_peer": waited,
                "slowest_rank": slowest if waited[slowest] > 0 else None,
            }
