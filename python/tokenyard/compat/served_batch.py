"""A low-latency batch with the semantics of other libraries, for the packages that imitate them.

Such a batch may be combined any number of times, and a hook runs on the stream of its call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import invalid
from ..expert_parallel import LowLatency, LowLatencyReceived


def on_stream_of_call(hook: Callable[[], None], device_index: int | None) -> Callable[[], None]:
    """Returns a hook bound to the current stream, whichever stream is current when it runs."""
    if device_index is None:
        return hook
    stream = torch.cuda.current_stream(device_index)

    def receive() -> None:
        with torch.cuda.stream(stream):
            hook()

    return receive


class ServedBatch(Sequence[Any]):
    """A dispatch's handle, which may be combined any number of times.

    It reads as the tuple (recv_src_info, recv_layout_range, num_max_dispatch_tokens_per_rank,
    hidden, num_experts).
    """

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
        """Memory that was handed out for a combine without a copy."""
        self._given = received
        """The caller's arrays, of the first dispatch; `received` is the latest."""
        self._places: torch.Tensor | None = None
        """[local experts, ranks, 2] int32: ranges of the first dispatch, once they are known."""
        self._moved = False
        """Whether a later dispatch may have moved the rows."""
        self._unmaskings = exchange.unmaskings
        self._put_back: torch.cuda.Event | None = None
        """The event after which the caller's rows are restored, on the stream that does it."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: Any) -> Any:
        # Each part is made on demand: after a call with a hook, ranges exist only once it ran.
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
        """Dispatches the batch's ids again, if a combine has ended the batch.

        Other libraries allow several combines per batch; here the first one ends it. Row positions
        depend only on the ids and on which ranks take part, so a dispatch of rows that nobody
        reads restores the routing. A rank that was masked since moves rows: see `results`.

        The caller may combine the received rows in place again and again, so if the new dispatch
        overwrites them, they are restored from a copy.

        Args:
            how: keywords of `LowLatency.dispatch`.

        Raises:
            InvalidArgument: ranks were unmasked since the first dispatch; it has no results of
                theirs.
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
        # Only if the new rows lie on the caller's: other memory may belong to another batch.
        if self.received.x.data_ptr() == given.x.data_ptr():
            for rows, copy in kept:
                rows.copy_(copy)
            if given.x.is_cuda:
                self._put_back = torch.cuda.Event()
                self._put_back.record()

    def results(self, y: torch.Tensor) -> torch.Tensor:
        """Returns the experts' results at the current row positions; call it before each combine.

        Args:
            y: [local experts, rows_max, hidden] results at the positions of the first dispatch.
        """
        ranges = self.received.ranges
        if not self._moved or self._places is None:
            self._places = ranges.clone()
            return y
        if y.device.type == "cpu" and torch.equal(ranges, self._places):
            return y
        return moved(y, self._places, ranges)

    def _layout_range(self) -> torch.Tensor:
        """Returns [local experts, ranks] int64: first row << 32 | number of rows, per source."""
        ranges = self.received.ranges
        return ranges.flip(2).contiguous().view(torch.int64)[:, :, 0]


def moved(y: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Returns rows moved from the ranges `before` to the ranges `after`, without a host wait.

    Rows outside the ranges are undefined.

    Args:
        y: [local experts, rows_max, hidden].
        before, after: [local experts, ranks, 2] int32: first row and number of rows per rank. A
            rank has the same number in both, or none in `after`.
    """
    slots = torch.arange(y.size(1), device=y.device, dtype=torch.int32).expand(y.size(0), -1)
    ends = (after[..., 0] + after[..., 1]).contiguous()
    rank = torch.searchsorted(ends, slots.contiguous(), right=True).clamp(max=after.size(1) - 1)
    shift = (before[..., 0] - after[..., 0]).gather(1, rank)
    place = (slots + shift).clamp(0, y.size(1) - 1).long()
    return y.gather(1, place[..., None].expand(-1, -1, y.size(2)))
