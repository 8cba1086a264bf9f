"""A low-latency batch as callers of other packages have it: combined as often as they like, with
hooks that belong to the stream of their call. For those who speak such a package's language."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .low_latency import LowLatency
from .low_latency_results import LowLatencyReceived


def on_stream_of_call(hook: Callable[[], None], device_index: int | None) -> Callable[[], None]:
    """The hook, for the stream that is current now: whoever calls it may be on another by then."""
    if device_index is None:
        return hook
    stream = torch.cuda.current_stream(device_index)

    def receive() -> None:
        with torch.cuda.stream(stream):
            hook()

    return receive


class ServedBatch(Sequence[Any]):
    """A dispatch's handle. It reads as (recv_src_info, recv_layout_range,
    num_max_dispatch_tokens_per_rank, hidden, num_experts)."""

    def __init__(
        self,
        exchange: LowLatency,
        received: LowLatencyReceived[torch.Tensor],
        topk_idx: torch.Tensor,
    ) -> None:
        self.exchange = exchange
        self.received = received
        self.topk_idx = topk_idx
        self.combined = False
        self.buffer: torch.Tensor | None = None
        """Handed out for a combine without a copy."""
        self._given = received
        """What the caller has, whatever memory the batch is in by now."""
        self._put_back: torch.cuda.Event | None = None
        """When that is as it was, on whatever stream that was done."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: Any) -> Any:
        # Of a call with a hook there are ranges once it was called, so they are not packed before.
        parts: list[Callable[[], Any]] = [
            lambda: self.received.source_token,
            self._layout_range,
            lambda: self.exchange.tokens_max,
            lambda: self.exchange.hidden,
            lambda: self.exchange.experts,
        ]
        if isinstance(index, slice):
            return tuple(part() for part in parts[index])
        return parts[index]()

    def begin_again(self, **how: Any) -> None:
        """There a batch may be combined more than once; here the first combine ends it. So before
        the next its ids are sent anew, with rows that nobody reads: places depend on ids alone, and
        on who takes part.

        There what was received is the caller's, who may combine it as it lies, again and again.
        Where those rows come to lie on it, it is put back.

        Args:
            how: the dispatch is made, as `LowLatency.dispatch` takes it.
        """
        if not self.combined:
            return
        ids, given = self.topk_idx, self._given
        if self._put_back is not None:
            self._put_back.wait()
        kept = [(rows, rows.clone()) for rows in (given.x, given.scales) if rows is not None]
        nothing = ids.new_zeros((ids.size(0), self.exchange.hidden), dtype=torch.bfloat16)
        self.received = self.exchange.dispatch(nothing, ids, rows="fp8", **how)
        self.combined = False
        # Elsewhere it stays as it is: another batch may have taken that memory.
        if self.received.x.data_ptr() == given.x.data_ptr():
            for rows, copy in kept:
                rows.copy_(copy)
            if given.x.is_cuda:
                self._put_back = torch.cuda.Event()
                self._put_back.record()

    def _layout_range(self) -> torch.Tensor:
        """[local experts, ranks] int64: a source's first row in the upper half, its rows below."""
        ranges = self.received.ranges
        return ranges.flip(2).contiguous().view(torch.int64)[:, :, 0]
