"""`Buffer`: the calls of DeepEP's legacy API, over Tokenyard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import tokenyard
from tokenyard.errors import invalid

from .config import Config
from .handles import DispatchHandle, LowLatencyHandle, check_handle
from .refusal import refuse, unsupported
from .rendezvous import join_rendezvous, timeout_of
from .room import advised
from .routing import layout_of
from .runtime import Runtime
from .serving import Serving, arena_bytes, rows_of
from .streams import CommunicationStream
from .throughput import Bias, Rows, Throughput
from .utils.event import EventHandle, EventOverlap

CONTROL_BYTES = 64 << 20
"""Of the arena beside what callers ask for: control words, and the rounding of sizes."""
RECEIVED_BYTES = 2 << 30
"""Of the arena beside `num_nvl_bytes`: received rows, which DeepEP takes from torch, lie there."""
DEFAULT_CHUNKS = (6, 256, 6, 256)
"""Of the configurations that are handed out; they mean nothing here."""


class Buffer:
    """One rank's memory and calls. Made, and its calls made, by all ranks of a group together.

    Args:
        group: the ranks, as a torch.distributed process group of any backend; or a
            `tokenyard.World`, which is then the caller's to close.
        num_nvl_bytes: for `dispatch` and `combine`; with 2 GiB more, or in a given World without,
            they bound the tokens of a call, and the rows of earlier ones that tensors and handles
            keep.
        num_rdma_bytes: for the low-latency calls; see `get_low_latency_rdma_size_hint`.
        low_latency_mode: whether there will be any.
        explicitly_destroy: whether `destroy` will be called.
        enable_shrink: low-latency calls go on without ranks that do not answer. Without it, the
            call after such a one raises `tokenyard.PeerTimeout`.
        num_qps_per_rank, allow_nvlink_for_low_latency_mode, allow_mnnvl: mean nothing here: every
            peer is reached by loads and stores.
        device: "cuda" or "host"; None takes GPUs where there are any.
        timeout: seconds that any wait may take; None takes the environment's
            TOKENYARD_DEEP_EP_TIMEOUT, or 100. A given World has its own.
    """

    num_sms: int = 20
    """Multiprocessors of a call whose Config does not say; see `set_num_sms`."""

    def __init__(
        self,
        group: dist.ProcessGroup | tokenyard.World | None,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
        device: str | None = None,
        timeout: float | None = None,
    ) -> None:
        if comm is not None:
            raise unsupported("comm", "ranks meet through torch.distributed; give a group")
        if group is None:
            raise invalid("group", "a process group", "None")
        if not allow_nvlink_for_low_latency_mode:
            raise unsupported(
                "allow_nvlink_for_low_latency_mode=False", "there is no other way to a peer yet"
            )
        for name, size in (("num_nvl_bytes", num_nvl_bytes), ("num_rdma_bytes", num_rdma_bytes)):
            if size < 0:
                raise invalid(name, "0 or more", str(size))
        self.group = group
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.explicitly_destroy = explicitly_destroy
        self.enable_shrink = enable_shrink
        room = num_nvl_bytes
        self._owns_world = not isinstance(group, tokenyard.World)
        if isinstance(group, tokenyard.World):
            if timeout is not None:
                raise invalid("timeout", "None beside a World, which has its own", repr(timeout))
            self._world = group
        else:
            seconds = timeout_of(timeout)
            room += RECEIVED_BYTES if num_nvl_bytes else 0
            size = room + num_rdma_bytes + CONTROL_BYTES
            self._world = join_rendezvous(group, device, size, seconds)
        self.runtime = Runtime(self._world)
        self.rank, self.group_size = self._world.rank, self._world.size
        self._stream = CommunicationStream(self._world.device_index)
        self._throughput = Throughput(self._world, room)
        self._advice = (
            f"num_nvl_bytes, here {num_nvl_bytes}, bounds the tokens of a call, and the rows that"
            " earlier ones brought, which their tensors keep until they die"
        )
        self._serving = Serving(self._world, enable_shrink)

    def destroy(self) -> None:
        """Gives everything back. Collective. No call may follow."""
        if not self.explicitly_destroy:
            raise invalid("explicitly_destroy", "True of a buffer that is destroyed", "False")
        self.runtime.close()
        self._throughput.close()
        self._serving.close()
        if self._owns_world:
            self._world.close()

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether FP8 rows are to be had: always."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """For configurations handed out from now on, of all buffers."""
        if new_num_sms < 0 or new_num_sms % 2:
            raise invalid("new_num_sms", "an even number", str(new_num_sms))
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """All that the current stream holds now, as an event."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """Good for any number of ranks."""
        return Config(Buffer.num_sms, *DEFAULT_CHUNKS)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """Good for any number of ranks."""
        return Config(Buffer.num_sms, *DEFAULT_CHUNKS)

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """`num_rdma_bytes` for low-latency calls of these sizes."""
        return arena_bytes(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    def get_comm_stream(self) -> torch.cuda.Stream:
        """The stream of calls with `async_finish`."""
        if self._stream.stream is None:
            raise unsupported("get_comm_stream", "there are no streams on the host")
        return self._stream.stream

    def get_local_buffer_tensor(
        self,
        dtype: torch.dtype,
        size: torch.Size | None = None,
        offset: int = 0,
        use_rdma_buffer: bool = False,
    ) -> torch.Tensor:
        """An empty tensor: there is nothing in the buffer that callers may write or need to clean.

        Raises:
            Unsupported: a size is asked for.
        """
        if size is not None and size.numel() > 0:
            raise unsupported(
                "get_local_buffer_tensor", "the buffer's memory is handed out call by call"
            )
        return torch.empty(0, dtype=dtype, device=self._device)

    def get_dispatch_layout(
        self,
        topk_idx: torch.Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, None, torch.Tensor, torch.Tensor, EventOverlap]:
        """How many tokens go to each rank and to each expert, and which to which rank.

        Only a dispatch without topk_idx reads them; counting is part of every other one.

        Args:
            topk_idx: [tokens, topk] int64 or int32, -1 for none.

        Returns:
            [ranks] int32, None, [experts] int32, [tokens, ranks] bool, and the event.
        """
        with self._stream.turn((previous_event,), async_finish) as turn:
            layout = layout_of(topk_idx, num_experts, self.group_size)
            turn.uses(topk_idx)
        if async_finish:
            self._stream.caller_uses(*layout)
        return layout[0], None, layout[1], layout[2], turn.end

    def dispatch(
        self,
        x: Rows,
        handle: DispatchHandle | None = None,
        num_tokens_per_rank: torch.Tensor | None = None,
        num_tokens_per_rdma_rank: torch.Tensor | None = None,
        is_token_in_rank: torch.Tensor | None = None,
        num_tokens_per_expert: torch.Tensor | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:
        """Sends every token to the ranks that hold its experts. Collective.

        Args:
            x: [tokens, hidden] bfloat16; or a tuple of float8_e4m3fn and [tokens, groups] scales of
                four bytes.
            handle: of an earlier dispatch, whose places are used again; with no ids and weights.
            is_token_in_rank: [tokens, ranks] bool; needed where topk_idx is None.
            num_tokens_per_expert: [experts] int32; of the others only its size is used.
            topk_idx, topk_weights: [tokens, topk] int64 or int32, and float32; ids may come without
                weights.
            expert_alignment: counts of rows are rounded up to a multiple of it.
            num_worst_tokens: returned tensors have so many rows, with ids of -1 after the received
                ones, and counts are left out.

        Returns:
            x as received, ids (of this rank's experts, or -1), weights (None if none were given),
            [local experts] counts, the handle and the event. Received rows lie in the buffer until
            their tensors die; the handle keeps none.
        """
        chosen = config or Buffer.get_dispatch_config(self.group_size)
        with (
            advised(self._advice),
            self._stream.turn((previous_event,), async_finish) as turn,
        ):
            if handle is not None:
                check_handle(handle, DispatchHandle, "dispatch")
                if topk_idx is not None or topk_weights is not None:
                    raise invalid("handle", "no topk_idx and topk_weights beside it", "both")
                done = self._throughput.dispatch_again(x, handle, chosen)
            else:
                if num_tokens_per_expert is None:
                    raise invalid("num_tokens_per_expert", "a tensor, without a handle", "None")
                if topk_idx is None and topk_weights is not None:
                    raise invalid("topk_idx", "a tensor beside topk_weights", "None")
                done = self._throughput.dispatch(
                    x,
                    topk_idx,
                    topk_weights,
                    is_token_in_rank,
                    num_tokens_per_expert,
                    expert_alignment,
                    num_worst_tokens,
                    chosen,
                )
            turn.uses(*(x if isinstance(x, tuple) else (x,)), topk_idx, topk_weights)
            turn.uses(is_token_in_rank)
        received = done.recv_x if isinstance(done.recv_x, tuple) else (done.recv_x,)
        if async_finish:
            self._stream.caller_uses(*received, done.recv_topk_idx, done.recv_topk_weights)
        return (*done, turn.end)

    def combine(
        self,
        x: torch.Tensor,
        handle: DispatchHandle,
        topk_weights: torch.Tensor | None = None,
        bias: Bias = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """Brings results home: for every token the sum over the ranks it went to. Collective.

        Args:
            x: [rows of the dispatch, hidden] bfloat16.
            topk_weights: [rows of the dispatch, topk] float32, to be summed over the ranks too.
            bias: one or two [tokens, hidden] tensors to be added.

        Returns:
            [tokens, hidden] bfloat16, [tokens, topk] float32 or None, and the event.
        """
        check_handle(handle, DispatchHandle, "dispatch")
        tokens = handle.route.tokens
        chosen = config or Buffer.get_combine_config(self.group_size)
        with (
            advised(self._advice),
            self._stream.turn((previous_event,), async_finish) as turn,
        ):
            out = torch.empty((tokens, x.size(1)), dtype=x.dtype, device=x.device)
            home = self._throughput.combine(x, handle, topk_weights, bias, out, chosen)
            turn.uses(x, topk_weights, *(bias if isinstance(bias, tuple) else (bias,)))
        if async_finish:
            self._stream.caller_uses(out, home)
        return out, home, turn.end

    def internode_dispatch(self, *arguments: Any, **options: Any) -> Any:
        """Not to be had: `dispatch` serves all ranks that loads and stores reach."""
        raise unsupported("internode_dispatch", "all ranks are those of one host; call dispatch")

    def internode_combine(self, *arguments: Any, **options: Any) -> Any:
        """Not to be had: see `internode_dispatch`."""
        raise unsupported("internode_combine", "all ranks are those of one host; call combine")

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
            self._serving.barrier()

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

    @property
    def _device(self) -> torch.device:
        index = self._world.device_index
        return torch.device("cpu") if index is None else torch.device("cuda", index)
