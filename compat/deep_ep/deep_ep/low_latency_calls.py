"""The low-latency calls of a Buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tokenyard.errors import invalid

from .handles import LowLatencyHandle, check_handle
from .refusal import refuse
from .serving import Serving, rows_of
from .streams import CommunicationStream
from .utils.event import EventOverlap


class LowLatencyCalls:
    """What a Buffer with `low_latency_mode` can do besides; its constructor fills the fields."""

    group_size: int
    low_latency_mode: bool
    enable_shrink: bool
    _stream: CommunicationStream
    _serving: Serving

    def clean_low_latency_buffer(
        self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> None:
        """Nothing is ever dirty here. With `enable_shrink` ranks meet, as they do in DeepEP, and
        those that do not come are masked: once there was a low-latency call, since that makes what
        they meet in. Collective.

        Raises:
            InvalidArgument: two batches of a shape are under way, or a dispatch's hook was not
                called: to meet is a dispatch of its own.
        """
        if self.enable_shrink:
            self._serving.meet()

    def low_latency_dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        dispatch_wait_recv_cost_stats: torch.Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        **others: Any,
    ) -> tuple[Any, torch.Tensor, LowLatencyHandle, EventOverlap, Callable[[], None] | None]:
        """Sends every token to the ranks that hold its experts, as rows of each. Collective.

        Args:
            x: [tokens, hidden] bfloat16, hidden a multiple of 32.
            topk_idx: [tokens, topk] int64 or int32, topk up to 16, -1 for none.
            cumulative_local_expert_recv_stats: [local experts] int32: received rows are added.
            dispatch_wait_recv_cost_stats: [ranks] int64: cycles waited for each are added.
            use_fp8, round_scale, use_ue8m0: what is delivered: E4M3 with scales; these rounded up
                to powers of two; these as packed exponents.
            return_recv_hook: only send; the hook receives.

        Returns:
            [local experts, ranks * tokens, hidden], with scales a tuple; [local experts] int32 rows
            of each; the handle, the event, and the hook if one was asked for, which runs on this
            call's stream. Rows, scales, counts and the handle's tensors lie in the exchange's own
            memory: once this batch is combined, the next dispatch may take it.
        """
        refuse(others)
        self._require_low_latency(async_finish, return_recv_hook)
        rows = rows_of(use_fp8, round_scale, use_ue8m0)
        with self._stream.turn((), async_finish) as turn:
            handle, hook = self._serving.dispatch(
                x,
                topk_idx,
                num_max_dispatch_tokens_per_rank,
                num_experts,
                rows,
                cumulative_local_expert_recv_stats,
                dispatch_wait_recv_cost_stats,
                return_recv_hook,
            )
            turn.uses(x, topk_idx, cumulative_local_expert_recv_stats)
            turn.uses(dispatch_wait_recv_cost_stats)
        received = handle.received
        delivered = (received.x, received.scales) if use_fp8 else received.x
        return delivered, received.counts, handle, turn.end, hook

    def low_latency_combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: LowLatencyHandle,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: torch.Tensor | None = None,
        combine_wait_recv_cost_stats: torch.Tensor | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, EventOverlap, Callable[[], None] | None]:
        """Brings results home, weighted and summed over a token's experts. Collective.

        A batch may be combined again: its ids are then dispatched anew, which all ranks do.

        Args:
            x: [local experts, ranks * tokens, hidden] bfloat16, where the rows lay.
            topk_idx: as dispatched. The tensor that was dispatched is read, whatever this one
                holds, and only by a second combine: until then it stays as it was.
            topk_weights: [tokens, topk] float32.
            zero_copy: results lie in `get_next_low_latency_combine_buffer`; x is not read. (Others
                are read in place too.)
            out: [tokens, hidden] bfloat16 to write to.

        Returns:
            [tokens, hidden] bfloat16, the event, and the hook if one was asked for.
        """
        refuse(others)
        self._require_low_latency(async_finish, return_recv_hook)
        check_handle(handle, LowLatencyHandle, "low_latency_dispatch")
        if out is None:
            shape = (topk_weights.size(0), handle.exchange.hidden)
            out = torch.empty(shape, dtype=torch.bfloat16, device=topk_weights.device)
        with self._stream.turn((), async_finish) as turn:
            if handle.combined:
                turn.uses(handle.topk_idx)
            combined, hook = self._serving.combine(
                x,
                topk_weights,
                handle,
                out,
                use_logfmt,
                zero_copy,
                combine_wait_recv_cost_stats,
                return_recv_hook,
            )
            turn.uses(x, topk_weights, out, combined.lost, combine_wait_recv_cost_stats)
        return out, turn.end, hook

    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> torch.Tensor:
        """[local experts, ranks * tokens, hidden] bfloat16 for results that no copy is made of."""
        check_handle(handle, LowLatencyHandle, "low_latency_dispatch")
        return self._serving.buffer(handle)

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Masks a rank, or unmasks it: before any rank does so all have drained their streams, and
        none calls anything until all have done so. Handles of batches that were not combined are
        refused after that.

        Raises:
            InvalidArgument: a rank is unmasked while a hook was not called. Nothing has changed.
        """
        self._serving.update_mask(rank_to_mask, mask)

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Writes 1 for masked ranks and 0 for the others, after the calls before it on the current
        stream.

        Args:
            mask_status: [ranks] int32.
        """
        self._serving.write_mask(mask_status)

    def low_latency_clean_mask_buffer(self) -> None:
        """Unmasks all ranks; see `low_latency_update_mask_buffer`."""
        self._serving.clear_mask()

    def _require_low_latency(self, async_finish: bool, return_recv_hook: bool) -> None:
        if not self.low_latency_mode:
            raise invalid("low_latency_mode", "True of a buffer for low-latency calls", "False")
        if async_finish and return_recv_hook:
            raise invalid("async_finish", "False where a hook is asked for", "True")
