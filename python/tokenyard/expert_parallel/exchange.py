"""What `ExpertParallel` and `LowLatency` have in common: calls enqueued on a stream."""

from __future__ import annotations

from typing import Any

from ..arrays import Arrays, check_array, current_stream
from ..world.world import World


class Exchange:
    """Calls return before their work has ended; this asks for its end, and for its errors."""

    _native: Any

    def __init__(
        self, world: World, native: Any, *, experts: int, hidden: int, topk: int, tokens_max: int
    ) -> None:
        self.world = world
        self.experts, self.hidden, self.topk = experts, hidden, topk
        self.tokens_max = tokens_max
        self._native = native
        self._device_index = world.device_index
        self._device = "cpu" if self._device_index is None else f"cuda:{self._device_index}"
        self._stream = current_stream(self._device_index)

    def check(self) -> None:
        """Raises the error of an enqueued call that has failed by now; does not wait."""
        self._native.check()

    def wait(self) -> None:
        """Waits until the work enqueued on the current stream has ended, then as `check`."""
        self._native.wait(stream=self._stream())

    def _check(
        self,
        name: str,
        array: Any,
        arrays: Arrays,
        dtypes: tuple[str, ...],
        shape: tuple,
        *,
        written: bool = False,
    ) -> None:
        check_array(
            name,
            array,
            arrays=arrays,
            dtypes=dtypes,
            shape=shape,
            device=self._device,
            written=written,
        )
