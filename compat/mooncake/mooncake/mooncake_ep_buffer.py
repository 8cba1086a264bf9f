"""Dispatch and combine in the terms of Mooncake: every call takes the ranks that are active, and
how long to wait for them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import tokenyard
from tokenyard.compat.served_batch import ServedBatch, on_stream_of_call
from tokenyard.errors import invalid

TOPK_MAX = 16
"""Picks a token that memory is reckoned for: the most that an exchange takes."""
CONTROL_BYTES = 4 << 20
ADVICE = (
    "num_ep_buffer_bytes is the room of all calls: get_ep_buffer_size_hint of each shape of call,"
    " added up"
)
TIMEOUT_S = 100.0
"""Of a World that a Buffer makes: for its ranks to meet."""
FOREVER_S = 14 * 60.0
"""Of a call with a `timeout_us` of -1, which waits for ever in Mooncake: the longest there is. So a
rank that compiles its kernels for minutes, before its first call, is not taken for lost."""


class Handle(ServedBatch):
    """What a combine must know of its dispatch. Reads as Mooncake's tuple."""


def refuse_in_graph(device_index: int | None) -> None:
    """The host reads `active_ranks` before a call: a graph would hold what it read for ever."""
    if device_index is not None and torch.cuda.is_current_stream_capturing():
        why = "the host reads it at every call; a graph can hold calls with active_ranks=None"
        raise tokenyard.Unsupported(
            f"active_ranks within a CUDA graph: {why}", asked="active_ranks", why=why
        )


class EventOverlap:
    """The end of a call. Its work is on the stream that was current, and comes before what is
    enqueued there next: there is nothing to wait for."""

    def __init__(self, event: Any = None, extra_tensors: tuple[torch.Tensor, ...] | None = None):
        self.event, self.extra_tensors = event, extra_tensors

    def current_stream_wait(self) -> None:
        """The current stream has what the call brings."""

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *_: object) -> None:
        self.current_stream_wait()


class Buffer:
    """One rank's end. Made, and its calls made, by all ranks of the group together.

    Args:
        group: a process group of any backend, or a `tokenyard.World`.
        num_ep_buffer_bytes: memory that peers reach; see `get_ep_buffer_size_hint`. Of a World its
            arena is used, whatever this says.
        disable_p2p: not to be had: peers are reached by loads and stores.
        device: "cuda" or "host"; without one, GPUs where there are any.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | tokenyard.World,
        num_ep_buffer_bytes: int = 0,
        disable_p2p: bool = False,
        device: str | None = None,
    ) -> None:
        if disable_p2p:
            why = "peers are reached by loads and stores"
            raise tokenyard.Unsupported(f"disable_p2p: {why}", asked="disable_p2p", why=why)
        if num_ep_buffer_bytes < 0:
            raise invalid("num_ep_buffer_bytes", "0 or more", str(num_ep_buffer_bytes))
        self.group, self.num_ep_buffer_bytes = group, num_ep_buffer_bytes
        if isinstance(group, tokenyard.World):
            self._world = group
        else:
            chosen = device or ("cuda" if torch.cuda.is_available() else "host")
            if chosen == "cuda":
                torch.cuda.init()  # Who has not set its device yet means the first one.
            world = tokenyard.World.from_torch(
                group,
                device=chosen,
                timeout=TIMEOUT_S,
                arena_bytes=num_ep_buffer_bytes + CONTROL_BYTES,
            )
            assert world is not None  # All ranks of the group are in it.
            self._world = world
        self.rank, self.group_size = self._world.rank, self._world.size
        self._exchanges: dict[tuple[int, int, int, int], tokenyard.LowLatency] = {}

    @staticmethod
    def get_ep_buffer_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes for calls of this shape with up to 16 picks a token."""
        return tokenyard.LowLatency.memory(
            experts=num_experts,
            hidden=hidden,
            topk=min(TOPK_MAX, num_experts),
            tokens_max=num_max_dispatch_tokens_per_rank,
            ranks=num_ranks,
        ).arena_bytes

    def dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        active_ranks: torch.Tensor | None,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        timeout_us: int,
        use_fp8: bool | None = None,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[
        torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        torch.Tensor,
        Handle,
        EventOverlap,
        Callable[[], None] | None,
    ]:
        """Sends every token to the ranks that hold its experts, as rows of each. Collective.

        Args:
            x: [tokens, hidden] bfloat16.
            topk_idx: [tokens, topk] int64 or int32, -1 for none.
            active_ranks: [ranks] int32: 0 leaves a rank out. Ranks that do not answer become 0, in
                the order of the stream. None: everybody who has answered so far.
            timeout_us: how long to wait; -1: 14 minutes, the longest there is.
            use_fp8: rows as E4M3 with scales, unless False.
            return_recv_hook: only send; the hook receives.

        Returns:
            [local experts, ranks * tokens, hidden], with scales a tuple; [local experts] int32 rows
            of each; the handle, the event, and the hook if one was asked for, which runs on this
            call's stream. Rows, scales, counts and the handle's tensors lie in the exchange's own
            memory: once this batch is combined, the next dispatch may take it.
        """
        exchange = self._exchange(
            (num_max_dispatch_tokens_per_rank, x.size(1), num_experts, topk_idx.size(1))
        )
        received = exchange.dispatch(
            x,
            topk_idx,
            rows="bf16" if use_fp8 is False else "fp8",
            active_ranks=self._active(exchange, active_ranks),
            timeout=_seconds(timeout_us),
            return_recv_hook=return_recv_hook,
        )
        hook = self._told(exchange, active_ranks, received.hook)
        delivered = received.x if received.scales is None else (received.x, received.scales)
        handle = Handle(exchange, received, topk_idx)
        return delivered, received.counts, handle, EventOverlap(), hook

    def combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        active_ranks: torch.Tensor | None,
        timeout_us: int,
        handle: Handle,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, EventOverlap, Callable[[], None] | None]:
        """Brings results home, weighted and summed over a token's experts. Collective.

        A batch may be combined again: its ids are then dispatched anew, which all ranks do.

        Args:
            x: [local experts, ranks * tokens, hidden] bfloat16, where the rows lay.
            topk_idx: as dispatched. The tensor that was dispatched is read, whatever this one
                holds, and only by a second combine: until then it stays as it was.
            topk_weights: [tokens, topk] float32.
            active_ranks, timeout_us, return_recv_hook: as `dispatch`.
            zero_copy: results lie in `get_next_combine_buffer`; x is not read.
            out: [tokens, hidden] bfloat16 to write to.

        Returns:
            [tokens, hidden] bfloat16, which lacks the experts of ranks that did not answer; the
            event, and the hook if one was asked for.
        """
        exchange = self._exchange_of(handle)
        how: dict[str, Any] = dict(
            active_ranks=self._active(exchange, active_ranks), timeout=_seconds(timeout_us)
        )
        if zero_copy:
            if handle.buffer is None:
                raise invalid("zero_copy", "the results in get_next_combine_buffer", "elsewhere")
            x = handle.buffer
        handle.begin_again(**how)
        combined = exchange.combine(
            handle.results(x),
            handle.received,
            topk_weights,
            out=out,
            return_recv_hook=return_recv_hook,
            **how,
        )
        handle.combined, handle.buffer = True, None
        hook = self._told(exchange, active_ranks, combined.hook)
        if hook is None:
            exchange.check()  # The batch is over: nobody waits for who is told now.
        return combined.x, EventOverlap(), hook

    def get_next_combine_buffer(self, handle: Handle) -> torch.Tensor:
        """[local experts, ranks * tokens, hidden] bfloat16 for results that no copy is made of."""
        exchange = self._exchange_of(handle)
        handle.begin_again(timeout=FOREVER_S)
        handle.buffer = exchange.combine_buffer(handle.received)
        return handle.buffer

    def update_ep_member(self) -> None:
        """Everybody is spoken with again. Collective: all ranks are there, and none has a call or a
        batch under way."""
        for exchange in self._exchanges.values():
            exchange.wait()
            epochs = self._world.all_gather(struct.pack("I", exchange.epoch()), "epochs")
            exchange.restart(max(struct.unpack("I", epoch)[0] for epoch in epochs))
        self._world.barrier("members are updated")

    def _exchange(self, shape: tuple[int, int, int, int]) -> tokenyard.LowLatency:
        """Made by all ranks together, when the first call of its shape comes."""
        if shape not in self._exchanges:
            tokens_max, hidden, experts, topk = shape
            try:
                self._exchanges[shape] = tokenyard.LowLatency(
                    self._world, experts=experts, hidden=hidden, topk=topk, tokens_max=tokens_max
                )
            except tokenyard.InvalidArgument as error:
                if error.argument == "arena_bytes":
                    error.add_note(ADVICE)
                raise
        return self._exchanges[shape]

    @staticmethod
    def _exchange_of(handle: Handle) -> tokenyard.LowLatency:
        if not isinstance(handle, Handle):
            raise invalid("handle", "what dispatch gave", type(handle).__name__)
        return handle.exchange

    def _active(
        self, exchange: tokenyard.LowLatency, active_ranks: torch.Tensor | None
    ) -> list[bool] | None:
        """Of this call. The tensor loses the ranks that have not answered an earlier one."""
        if active_ranks is None:
            return None
        refuse_in_graph(self._world.device_index)
        if active_ranks.shape != (self.group_size,):
            raise invalid("active_ranks", f"[{self.group_size}]", str(list(active_ranks.shape)))
        self._write_masked(exchange, active_ranks)
        return [bool(active) for active in active_ranks.tolist()]

    def _told(
        self,
        exchange: tokenyard.LowLatency,
        active_ranks: torch.Tensor | None,
        hook: Callable[[], None] | None,
    ) -> Callable[[], None] | None:
        """After a call, or as part of its hook: `active_ranks` learns who has not answered."""
        if hook is None:
            if active_ranks is not None:
                self._write_masked(exchange, active_ranks)
            return None

        def receive() -> None:
            hook()
            if active_ranks is not None:
                self._write_masked(exchange, active_ranks)

        return on_stream_of_call(receive, self._world.device_index)

    def _write_masked(self, exchange: tokenyard.LowLatency, active_ranks: torch.Tensor) -> None:
        index = self._world.device_index
        device = torch.device("cpu") if index is None else torch.device("cuda", index)
        masked = torch.empty(self.group_size, dtype=torch.int32, device=device)
        exchange.write_mask(masked)
        active_ranks.masked_fill_((masked != 0).to(active_ranks.device), 0)


def _seconds(timeout_us: int) -> float:
    return FOREVER_S if timeout_us < 0 else timeout_us * 1e-6
