"""DeepEP's low-latency dispatch and combine."""

from __future__ import annotations

from collections.abc import Callable

import torch

import tokenyard
from tokenyard.compat.served_batch import on_stream_of_call
from tokenyard.errors import invalid

from .handles import LowLatencyHandle
from .room import advised

TOPK_MAX = 16
"""Experts per token for which memory is sized: the largest number of an exchange."""
ADVICE = (
    "num_rdma_bytes is the memory of low-latency calls: use the sum of"
    " get_low_latency_rdma_size_hint over all shapes of calls"
)


def arena_bytes(tokens_max: int, hidden: int, ranks: int, experts: int) -> int:
    """Returns the arena bytes for calls of these sizes."""
    return tokenyard.LowLatency.memory(
        experts=experts,
        hidden=hidden,
        topk=min(TOPK_MAX, experts),
        tokens_max=tokens_max,
        ranks=ranks,
    ).arena_bytes


def rows_of(use_fp8: bool, round_scale: bool, use_ue8m0: bool) -> str:
    """Returns the format of rows that DeepEP's flags select."""
    if not use_fp8:
        return "bf16"  # Without scales, whatever their flags are.
    if use_ue8m0 and not round_scale:
        raise invalid("use_ue8m0", "round_scale beside it", "scales that are not rounded")
    return "fp8_ue8m0" if use_ue8m0 else "fp8_rounded" if round_scale else "fp8"


class Serving:
    """The low-latency exchanges of a buffer, one per shape of call.

    All ranks make an exchange together at the first call of its shape, which therefore must not be
    in a CUDA graph, and needs all ranks alive.
    """

    def __init__(self, world: tokenyard.World, masks: bool, only_put: bool = False) -> None:
        self._world = world
        self._masks = masks
        self._paths = "put" if only_put else "topology"
        index = world.device_index
        self._device = torch.device("cpu") if index is None else torch.device("cuda", index)
        self._exchanges: dict[tuple[int, int, int, int], tokenyard.LowLatency] = {}
        self._left_out: set[int] = set()
        """Ranks that the caller has masked; also masked in exchanges made later."""

    def dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        tokens_max: int,
        experts: int,
        rows: str,
        received_total: torch.Tensor | None,
        waited_cycles: torch.Tensor | None,
        return_recv_hook: bool,
    ) -> tuple[LowLatencyHandle, Callable[[], None] | None]:
        exchange = self._exchange(tokens_max, x.size(1), experts, topk_idx.size(1))
        self._refuse_silence()
        received = exchange.dispatch(
            x,
            topk_idx,
            rows=rows,
            rows_total=received_total,
            waited_cycles=waited_cycles,
            return_recv_hook=return_recv_hook,
        )
        handle = LowLatencyHandle(exchange, received, topk_idx, frozenset(self._left_out))
        return handle, self._hook(received.hook)

    def combine(
        self,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: LowLatencyHandle,
        out: torch.Tensor,
        use_logfmt: bool,
        zero_copy: bool,
        waited_cycles: torch.Tensor | None,
        return_recv_hook: bool,
    ) -> tuple[tokenyard.LowLatencyCombined[torch.Tensor], Callable[[], None] | None]:
        self._refuse_silence()
        if zero_copy:
            if handle.buffer is None:
                raise invalid(
                    "zero_copy", "the results in get_next_low_latency_combine_buffer", "elsewhere"
                )
            x = handle.buffer
        self.begin_again(handle)
        combined = handle.exchange.combine(
            handle.results(x),
            handle.received,
            topk_weights,
            out=out,
            use_logfmt=use_logfmt,
            waited_cycles=waited_cycles,
            return_recv_hook=return_recv_hook,
        )
        handle.combined, handle.buffer = True, None
        if combined.hook is None:
            # Only now: the batch is over, so no rank waits for one that raises.
            handle.exchange.check()
        return combined, self._hook(combined.hook)

    def begin_again(self, handle: LowLatencyHandle) -> None:
        """Dispatches the batch again if it was combined; see ServedBatch."""
        left_out = self._left_out - handle.left_out
        if handle.combined and left_out:
            raise invalid(
                "handle",
                "that of a batch whose ranks are all spoken with, to combine it again",
                f"one of before ranks {sorted(left_out)} were masked",
            )
        handle.begin_again()

    def buffer(self, handle: LowLatencyHandle) -> torch.Tensor:
        """Returns memory of the exchange for the results of a batch."""
        self.begin_again(handle)
        handle.buffer = handle.exchange.combine_buffer(handle.received)
        return handle.buffer

    def barrier(self) -> None:
        """Makes a call without tokens per shape so far, which masks ranks that do not take part."""
        for exchange in self._exchanges.values():
            none = torch.empty(0, exchange.hidden, dtype=torch.bfloat16, device=self._device)
            ids = torch.empty(0, exchange.topk, dtype=torch.int64, device=self._device)
            exchange.dispatch(none, ids)

    def write_mask(self, status: torch.Tensor) -> None:
        """Enqueues a write of 1 for masked ranks and 0 for the others; the host does not wait."""
        self._require_masks()
        ranks = self._world.size
        if status.dtype != torch.int32 or status.shape != (ranks,):
            raise invalid(
                "mask_status", f"[{ranks}] int32", f"{list(status.shape)} of {status.dtype}"
            )
        masked = torch.zeros(ranks, dtype=torch.bool, device=self._device)
        for rank in self._left_out:
            masked[rank] = True
        words = torch.empty(ranks, dtype=torch.int32, device=self._device)
        for exchange in self._exchanges.values():
            exchange.write_mask(words)
            masked |= words != 0
        status.copy_(masked)

    def update_mask(self, rank: int, masked: bool) -> None:
        self._require_masks()
        ranks = self._world.size
        if not 0 <= rank < ranks or rank == self._world.rank:
            raise invalid("rank_to_mask", f"another of the {ranks} ranks", str(rank))
        if not masked:
            self._refuse_hooks_left()
        for exchange in self._exchanges.values():
            exchange.update_mask(rank, masked)
        (self._left_out.add if masked else self._left_out.discard)(rank)

    def clear_mask(self) -> None:
        self._require_masks()
        self._refuse_hooks_left()
        for exchange in self._exchanges.values():
            exchange.clear_mask()
        self._left_out.clear()

    def close(self) -> None:
        for exchange in self._exchanges.values():
            exchange.close()
        self._exchanges.clear()

    def _exchange(
        self, tokens_max: int, hidden: int, experts: int, topk: int
    ) -> tokenyard.LowLatency:
        shape = (tokens_max, hidden, experts, topk)
        if shape not in self._exchanges:
            with advised(ADVICE):
                exchange = tokenyard.LowLatency(
                    self._world,
                    experts=experts,
                    hidden=hidden,
                    topk=topk,
                    tokens_max=tokens_max,
                    paths=self._paths,
                )
            for rank in self._left_out:
                exchange.update_mask(rank, True)
            self._exchanges[shape] = exchange
        return self._exchanges[shape]

    def _hook(self, hook: Callable[[], None] | None) -> Callable[[], None] | None:
        if hook is None:
            return None
        return on_stream_of_call(hook, self._world.device_index)

    def _refuse_hooks_left(self) -> None:
        """Raises InvalidArgument if a hook of any exchange was not called.

        An exchange rejects unmasking until its hooks are called. Checked here for all, before the
        first of them unmasks and ends its batches.
        """
        if any(exchange.hooks_left for exchange in self._exchanges.values()):
            raise invalid("hook", "called before ranks are unmasked", "not called")

    def _require_masks(self) -> None:
        if not self._masks:
            raise invalid("enable_shrink", "True of a buffer whose masks are asked for", "False")

    def _refuse_silence(self) -> None:
        """Raises if a rank was masked and enable_shrink is off.

        No caller queries masks then, so the next call must not continue as if all ranks had
        answered.
        """
        if self._masks:
            return
        for exchange in self._exchanges.values():
            for masked in exchange.failed_ranks():
                if masked.why == "differs":
                    raise invalid("call", "the same on all ranks", str(masked), rank=masked.rank)
                raise tokenyard.PeerTimeout(
                    f"{masked}; with enable_shrink=True the others would continue without it",
                    rank=masked.rank,
                    phase=masked.phase,
                    expected=masked.expected,
                    seen=masked.seen,
                    waited_s=masked.waited_s,
                )
