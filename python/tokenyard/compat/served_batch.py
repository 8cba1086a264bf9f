"""A low-latency batch as callers of other packages have it: combined as often as they like, with
hooks that belong to the stream of their call. For those who speak such a package's language."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import invalid
from ..expert_parallel import LowLatency, LowLatencyReceived


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
        self._places: torch.Tensor | None = None
        """[local experts, ranks, 2] the first dispatch's ranges, once its rows have come."""
        self._moved = False
        """Whether rows may have come to other places since."""
        self._unmaskings = exchange.unmaskings
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
        on who takes part. A rank that has fallen silent since takes its places with it: see
        `results`.

        There what was received is the caller's, who may combine it as it lies, again and again.
        Where those rows come to lie on it, it is put back.

        Args:
            how: the dispatch is made, as `LowLatency.dispatch` takes it.

        Raises:
            InvalidArgument: ranks have been unmasked since the first dispatch: of those that it
                lacks there are no results.
        """
        if not self.combined:
            return
        if self._unmaskings != self.exchange.unmaskings:
            raise invalid(
                "handle", "that of a batch since which no rank was unmasked", "one from before"
            )
        ids, given = self.topk_idx, self._given
        if self._put_back is not None:
            self._put_back.wait()
        kept = [(rows, rows.clone()) for rows in (given.x, given.scales) if rows is not None]
        nothing = ids.new_zeros((ids.size(0), self.exchange.hidden), dtype=torch.bfloat16)
        self.received = self.exchange.dispatch(nothing, ids, rows="fp8", **how)
        self.combined, self._moved = False, True
        # Elsewhere it stays as it is: another batch may have taken that memory.
        if self.received.x.data_ptr() == given.x.data_ptr():
            for rows, copy in kept:
                rows.copy_(copy)
            if given.x.is_cuda:
                self._put_back = torch.cuda.Event()
                self._put_back.record()

    def results(self, y: torch.Tensor) -> torch.Tensor:
        """Returns the experts' results where the batch has its rows now; for each combine, just
        before it.

        Args:
            y: [local experts, rows_max, hidden] where the caller's rows lie.
        """
        ranges = self.received.ranges
        if not self._moved or self._places is None:
            self._places = ranges.clone()
            return y
        if y.device.type == "cpu" and torch.equal(ranges, self._places):
            return y
        return moved(y, self._places, ranges)

    def _layout_range(self) -> torch.Tensor:
        """[local experts, ranks] int64: a source's first row in the upper half, its rows below."""
        ranges = self.received.ranges
        return ranges.flip(2).contiguous().view(torch.int64)[:, :, 0]


def moved(y: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Returns rows that lie by the ranges `before` where those `after` have them; the host waits
    for nothing. Rows beyond the ranges hold anything.

    Args:
        y: [local experts, rows_max, hidden].
        before, after: [local experts, ranks, 2] int32: first row and rows of each rank; of the same
            rank as many in both, or none in `after`.
    """
    slots = torch.arange(y.size(1), device=y.device, dtype=torch.int32).expand(y.size(0), -1)
    ends = (after[..., 0] + after[..., 1]).contiguous()
    rank = torch.searchsorted(ends, slots.contiguous(), right=True).clamp(max=after.size(1) - 1)
    shift = (before[..., 0] - after[..., 0]).gather(1, rank)
    place = (slots + shift).clamp(0, y.size(1) - 1).long()
    return y.gather(1, place[..., None].expand(-1, -1, y.size(2)))
