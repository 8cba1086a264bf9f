"""Mooncake's dispatch and combine: each call takes the active ranks, and a timeout for them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import tokenyard
from tokenyard.compat.hosts import (
    gather_over_group,
    message_bytes,
    queues_per_peer,
    spans_hosts,
)
from tokenyard.compat.served_batch import ServedBatch, on_stream_of_call
from tokenyard.errors import invalid

from .ep_runtime import Runtime, get_ep_buffer_size_hint

CONTROL_BYTES = 4 << 20
ADVICE = (
    "num_ep_buffer_bytes is the memory of all calls: use the sum of get_ep_buffer_size_hint over"
    " all shapes of calls"
)
HALF = 2**31
"""Half of the epochs, which wrap: no two ranks are that many calls apart."""
TIMEOUT_S = 100.0
"""Timeout of a World that a Buffer makes, in seconds: for the rendezvous of its ranks."""
FOREVER_S = 14 * 60.0
"""Timeout of a call with a `timeout_us` of -1, which in Mooncake waits for ever: the longest
possible, so that a rank that compiles kernels for minutes before its first call is not lost."""


class Handle(ServedBatch):
    """A dispatch's handle, for combine. Reads as Mooncake's tuple."""


def refuse_in_graph(device_index: int | None) -> None:
    """Raises Unsupported during a capture: the host reads `active_ranks` before each call."""
    if device_index is not None and torch.cuda.is_current_stream_capturing():
        why = "the host reads it at every call; a graph can hold calls with active_ranks=None"
        raise tokenyard.Unsupported(
            f"active_ranks within a CUDA graph: {why}", asked="active_ranks", why=why
        )


class EventOverlap:
    """The end of a call. Calls run on the current stream, so there is nothing to wait for."""

    def __init__(self, event: Any = None, extra_tensors: tuple[torch.Tensor, ...] | None = None):
        self.event, self.extra_tensors = event, extra_tensors

    def current_stream_wait(self) -> None:
        """Does nothing: the call is on the current stream already."""

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *_: object) -> None:
        self.current_stream_wait()


class Buffer:
    """One rank's memory and calls. Collective: all ranks of a group make it and its calls together.

    Args:
        group: a process group of any backend, or a `tokenyard.World`.
        num_ep_buffer_bytes: arena bytes; see `get_ep_buffer_size_hint`. If the group spans hosts,
            or with `disable_p2p`, room for messages is added. Ignored with a World, which has its
            arena.
        disable_p2p: whether ranks of this host are reached over the network, too, instead of by
            loads and stores. A World given as `group` then needs ranks whose host names differ.
        device: "cuda" or "host"; None for "cuda" if there are GPUs.

    Raises:
        Unsupported: a rank is within reach of neither loads and stores nor the network.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | tokenyard.World,
        num_ep_buffer_bytes: int = 0,
        disable_p2p: bool = False,
        device: str | None = None,
    ) -> None:
        if num_ep_buffer_bytes < 0:
            raise invalid("num_ep_buffer_bytes", "0 or more", str(num_ep_buffer_bytes))
        self.group, self.num_ep_buffer_bytes = group, num_ep_buffer_bytes
        if isinstance(group, tokenyard.World):
            self._world = group
        else:
            chosen = device or ("cuda" if torch.cuda.is_available() else "host")
            if chosen == "cuda":
                torch.cuda.init()  # A process that has set no device uses the first one.
            # Ranks of one host put to one another only if each counts as a host.
            host_name = f"mooncake rank {dist.get_rank(group)}" if disable_p2p else None
            size = num_ep_buffer_bytes + CONTROL_BYTES
            if spans_hosts(gather_over_group(group), host_name):
                size += message_bytes(num_ep_buffer_bytes, chosen)
            world = tokenyard.World.from_torch(
                group,
                device=chosen,
                timeout=TIMEOUT_S,
                arena_bytes=size,
                host_name=host_name,
                network=queues_per_peer(0),
            )
            assert world is not None  # All ranks of the group are in it.
            self._world = world
        self._paths = "put" if disable_p2p else "topology"
        self.rank, self.group_size = self._world.rank, self._world.size
        self.runtime = Runtime(self._world, disable_p2p)
        self._exchanges: dict[tuple[int, int, int, int], tokenyard.LowLatency] = {}

    @staticmethod
    def get_ep_buffer_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Returns the bytes for calls of this shape with up to 16 experts per token."""
        return get_ep_buffer_size_hint(
            num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts
        )

    def connect(self, is_update: bool = False) -> None:
        """Does nothing: the ranks met when the buffer was made. With `is_update`, as
        `update_ep_member`."""
        if is_update:
            self.update_ep_member()

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
        """Sends each token to the ranks that hold its experts, one row per expert. Collective.

        Args:
            x: [tokens, hidden] bfloat16.
            topk_idx: [tokens, topk] int64 or int32, -1 for none.
            active_ranks: [ranks] int32: 0 excludes a rank. Ranks that do not answer are set to 0,
                in stream order. None: all ranks that have answered so far.
            timeout_us: microseconds to wait for a rank; -1 for 14 minutes, the longest possible.
            use_fp8: whether rows are E4M3 with scales; only False turns it off.
            return_recv_hook: whether to send only; the hook then receives.

        Returns:
            [local experts, ranks * tokens, hidden] rows, in a tuple with scales for FP8;
            [local experts] int32 number of rows; the handle, the event, and the hook or None, which
            runs on this call's stream. Rows, scales, counts and the handle's tensors are in memory
            of the exchange: once this batch is combined, the next dispatch may overwrite them.
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
        """Returns to each token the weighted sum of its experts' results. Collective.

        A batch may be combined again, by all ranks: its ids are then dispatched again.

        Args:
            x: [local experts, ranks * tokens, hidden] bfloat16, at the places of the rows.
            topk_idx: as dispatched; not read. A second combine reads the tensor that was
                dispatched, which must not change until then.
            topk_weights: [tokens, topk] float32.
            active_ranks, timeout_us, return_recv_hook: as `dispatch`.
            zero_copy: whether results are in `get_next_combine_buffer`; x is then not read.
            out: [tokens, hidden] bfloat16 to write to.

        Returns:
            [tokens, hidden] bfloat16 sums, which lack the experts of ranks that did not answer; the
            event, and the hook or None.
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
            exchange.check()  # Only now: the batch is over, so no rank waits for one that raises.
        return combined.x, EventOverlap(), hook

    def get_next_combine_buffer(self, handle: Handle) -> torch.Tensor:
        """Returns [local experts, ranks * tokens, hidden] bfloat16 memory for `zero_copy`."""
        exchange = self._exchange_of(handle)
        handle.begin_again(timeout=FOREVER_S)
        handle.buffer = exchange.combine_buffer(handle.received)
        return handle.buffer

    def update_ep_member(self) -> None:
        """Unmasks all ranks. Collective; no rank may have a call or batch in progress."""
        for exchange in self._exchanges.values():
            exchange.wait()
            own = exchange.epoch()
            epochs = self._world.all_gather(struct.pack("I", own), "epochs")
            # Epochs wrap, so the latest is the one furthest ahead of any other.
            ahead = max(
                (struct.unpack("I", epoch)[0] - own + HALF) % (2 * HALF) for epoch in epochs
            )
            exchange.restart((own + ahead - HALF) % (2 * HALF))
        self._world.barrier("members are updated")

    def _exchange(self, shape: tuple[int, int, int, int]) -> tokenyard.LowLatency:
        """Returns the exchange of a shape; all ranks make it together at its first call."""
        if shape not in self._exchanges:
            tokens_max, hidden, experts, topk = shape
            try:
                self._exchanges[shape] = tokenyard.LowLatency(
                    self._world,
                    experts=experts,
                    hidden=hidden,
                    topk=topk,
                    tokens_max=tokens_max,
                    paths=self._paths,
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
        """Returns the active ranks of a call; clears masked ranks in the tensor first."""
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
        """Clears masked ranks in `active_ranks` after a call, or as part of the returned hook."""
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
