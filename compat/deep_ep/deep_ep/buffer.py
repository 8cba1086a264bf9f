"""`Buffer`: DeepEP's legacy API over Tokenyard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import tokenyard
from tokenyard.compat.hosts import queues_per_peer
from tokenyard.compat.reach import require_reach
from tokenyard.errors import invalid

from .config import RDMA_CHUNKS, Config
from .handles import DispatchHandle, LowLatencyHandle, check_handle
from .rdma_ranks import RdmaRanks
from .refusal import refuse, unsupported
from .rendezvous import domains, join_rendezvous, join_through_mpi, timeout_of
from .room import advised
from .routing import layout_of
from .runtime import Runtime
from .serving import Serving, arena_bytes, rows_of
from .streams import CommunicationStream
from .throughput import Bias, Rows, Throughput
from .utils.event import EventHandle, EventOverlap

CONTROL_BYTES = 64 << 20
"""Arena bytes beyond those that callers request: control words, and rounded sizes."""
RECEIVED_BYTES = 2 << 30
"""Arena bytes beyond `num_nvl_bytes`: for received rows, which DeepEP allocates from torch."""
DEFAULT_CHUNKS = (6, 256, *RDMA_CHUNKS)
"""Chunk sizes of returned configurations, with which exchanges choose their own."""


class Buffer:
    """One rank's memory and calls. Collective: all ranks of a group make it and its calls together.

    Args:
        group: a torch.distributed process group of any backend; or a `tokenyard.World`, which
            the caller has to close; or None beside `comm`.
        num_nvl_bytes: memory for `dispatch` and `combine`. Together with 2 GiB more (not with a
            World) it bounds the tokens per call, and the rows of earlier calls that tensors and
            handles keep.
        num_rdma_bytes: memory for low-latency calls; see `get_low_latency_rdma_size_hint`. If the
            group spans hosts, room for messages to other hosts is added.
        low_latency_mode: whether low-latency calls are allowed.
        explicitly_destroy: whether `destroy` will be called.
        enable_shrink: whether low-latency calls continue without ranks that do not answer. If not,
            the call after one that timed out raises `tokenyard.PeerTimeout`.
        num_qps_per_rank: queues per peer between hosts, at least 8. Each shape of low-latency calls
            takes one, each other one two. The environment's TOKENYARD_NETWORK_QUEUES precedes.
        allow_nvlink_for_low_latency_mode: whether low-latency calls reach ranks of this host by
            loads and stores. If not, all calls go over the network, as to other hosts; then
            `low_latency_mode` must be on.
        allow_mnnvl: whether GPUs of one NVLink network over several hosts reach one another by
            loads and stores. The environment's TOKENYARD_DOMAIN precedes.
        use_fabric: no effect: memory is exported to an NVLink network where there is one.
        comm: a communicator of mpi4py, whose ranks make the buffer; not used beside a group.
        device: "cuda" or "host"; None for "cuda" if there are GPUs.
        timeout: deadline of every wait in seconds; None for the environment's
            TOKENYARD_DEEP_EP_TIMEOUT, or 100. Must be None with a World, which has its own.

    Raises:
        Unsupported: without `low_latency_mode`, a rank of this host is not within reach of loads
            and stores, or one of another host not within reach of the network; or an option needs
            what does not exist here.
    """

    num_sms: int = 20
    """Default multiprocessors of a call without a Config; see `set_num_sms`."""

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
        use_fabric: bool = False,
        device: str | None = None,
        timeout: float | None = None,
    ) -> None:
        if group is None and comm is None:
            raise invalid("group", "a process group, or comm instead", "None")
        only_put = not allow_nvlink_for_low_latency_mode
        if only_put and not low_latency_mode:
            raise invalid(
                "allow_nvlink_for_low_latency_mode",
                "True of a buffer without low_latency_mode",
                "False",
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
            join = join_through_mpi if group is None else join_rendezvous
            # Ranks of one host put to one another only if each counts as a host.
            host_name = None
            if only_put:
                rank = comm.Get_rank() if group is None else dist.get_rank(group)
                host_name = f"deep_ep rank {rank}"
            with domains(allow_mnnvl):
                self._world = join(
                    comm if group is None else group,
                    device,
                    room + num_rdma_bytes + CONTROL_BYTES,
                    seconds,
                    host_name,
                    queues_per_peer(num_qps_per_rank),
                    num_rdma_bytes if low_latency_mode else 0,
                )
        if not low_latency_mode:
            require_reach(self._world, "Buffer", "DeepEP", hosts=True)
        self._hosts = RdmaRanks(self._world)
        self.runtime = Runtime(self._world, self._hosts)
        self.rank, self.group_size = self._world.rank, self._world.size
        self._stream = CommunicationStream(self._world.device_index)
        self._throughput = Throughput(self._world, self._hosts, room)
        self._advice = (
            f"num_nvl_bytes, here {num_nvl_bytes}, bounds the tokens of a call, and the rows that"
            " earlier ones brought, which their tensors keep until they die"
        )
        self._serving = Serving(self._world, enable_shrink, only_put)

    def destroy(self) -> None:
        """Frees the buffer. Collective; no call may follow."""
        if not self.explicitly_destroy:
            raise invalid("explicitly_destroy", "True of a buffer that is destroyed", "False")
        self.runtime.close()
        self._throughput.close()
        self._serving.close()
        if self._owns_world:
            self._world.close()

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Returns True: FP8 rows are always available."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Sets the multiprocessors of configurations returned from now on, for all buffers."""
        if new_num_sms < 0 or new_num_sms % 2:
            raise invalid("new_num_sms", "an even number", str(new_num_sms))
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """Returns an event after all work that the current stream holds now."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """Returns a configuration that suits any number of ranks."""
        return Config(Buffer.num_sms, *DEFAULT_CHUNKS)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """Returns a configuration that suits any number of ranks."""
        return Config(Buffer.num_sms, *DEFAULT_CHUNKS)

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Returns the `num_rdma_bytes` for low-latency calls of these sizes."""
        return arena_bytes(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    def get_comm_stream(self) -> torch.cuda.Stream:
        """Returns the stream of calls with `async_finish`."""
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
        """Returns an empty tensor: callers may not write the buffer and need not clean it.

        Raises:
            Unsupported: `size` is not 0 or None.
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
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, EventOverlap]:
        """Returns the number of tokens per rank, host and expert, and each token's ranks.

        Only a dispatch without topk_idx reads them; any other dispatch counts by itself.

        Args:
            topk_idx: [tokens, topk] int64 or int32, -1 for none.

        Returns:
            [ranks] int32, [hosts] int32 (None if there is one host), [experts] int32,
            [tokens, ranks] bool, and the event.
        """
        with self._stream.turn((previous_event,), async_finish) as turn:
            layout = layout_of(topk_idx, num_experts, self.group_size, self._hosts)
            turn.uses(topk_idx)
        if async_finish:
            self._stream.caller_uses(*layout)
        return (*layout, turn.end)

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
        """Sends each token to the ranks that hold its experts. Collective.

        Args:
            x: [tokens, hidden] bfloat16; or a tuple of float8_e4m3fn and [tokens, groups] scales of
                four bytes.
            handle: handle of an earlier dispatch whose route is used again, instead of ids and
                weights.
            is_token_in_rank: [tokens, ranks] bool; required if topk_idx is None.
            num_tokens_per_expert: [experts] int32; only its size is used if topk_idx is given.
            topk_idx, topk_weights: [tokens, topk] int64 or int32, and float32; weights are
                optional.
            expert_alignment: counts of rows are rounded up to a multiple of this.
            num_worst_tokens: if not 0, the number of rows of returned tensors, with ids of -1 after
                the received ones; counts are omitted.

        Returns:
            Received x, ids (of this rank's experts, or -1), weights (None if none were given),
            [local experts] counts, the handle and the event. Received rows take space in the buffer
            until their tensors are dropped; the handle keeps none.
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
        """Returns to each token the sum of its results over the ranks it went to. Collective.

        Args:
            x: [rows of the dispatch, hidden] bfloat16.
            topk_weights: [rows of the dispatch, topk] float32, summed over the ranks, too.
            bias: one or two [tokens, hidden] tensors to add.

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

    def internode_dispatch(
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
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:
        """As `dispatch`, which serves several hosts, too.

        Raises:
            Unsupported: all ranks are on one host.
        """
        self._require_hosts("internode_dispatch", "dispatch")
        return self.dispatch(
            x,
            handle,
            num_tokens_per_rank,
            num_tokens_per_rdma_rank,
            is_token_in_rank,
            num_tokens_per_expert,
            topk_idx,
            topk_weights,
            expert_alignment,
            config=config,
            previous_event=previous_event,
            async_finish=async_finish,
            allocate_on_comm_stream=allocate_on_comm_stream,
        )

    def internode_combine(
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
        """As `combine`, which serves several hosts, too.

        Raises:
            Unsupported: all ranks are on one host.
        """
        self._require_hosts("internode_combine", "combine")
        return self.combine(
            x,
            handle,
            topk_weights,
            bias,
            config,
            previous_event,
            async_finish,
            allocate_on_comm_stream,
        )

    def clean_low_latency_buffer(
        self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> None:
        """Synchronizes ranks with `enable_shrink`; does nothing otherwise. Collective.

        Buffers need no cleaning here. With `enable_shrink`, as in DeepEP, ranks that do not take
        part are masked. Before the first low-latency call, which makes the exchange, it does
        nothing.

        Raises:
            InvalidArgument: two batches of a shape are in progress, or a dispatch's hook was not
                called: the synchronization is a dispatch.
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
        """Sends each token to the ranks that hold its experts, one row per expert. Collective.

        Args:
            x: [tokens, hidden] bfloat16, hidden a multiple of 32.
            topk_idx: [tokens, topk] int64 or int32, topk up to 16, -1 for none.
            cumulative_local_expert_recv_stats: [local experts] int32 to which received rows are
                added.
            dispatch_wait_recv_cost_stats: [ranks] int64 to which cycles waited for each are added.
            use_fp8, round_scale, use_ue8m0: format of delivered rows: E4M3 with scales; scales
                rounded up to powers of two; these as packed exponents.
            return_recv_hook: whether to send only; the hook then receives.

        Returns:
            [local experts, ranks * tokens, hidden] rows, in a tuple with scales for FP8;
            [local experts] int32 number of rows; the handle, the event, and the hook or None, which
            runs on this call's stream. Rows, scales, counts and the handle's tensors are in memory
            of the exchange: once this batch is combined, the next dispatch may overwrite them.
        """
        refuse(others, "low_latency_dispatch")
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
        """Returns to each token the weighted sum of its experts' results. Collective.

        A batch may be combined again, by all ranks: its ids are then dispatched again.

        Args:
            x: [local experts, ranks * tokens, hidden] bfloat16, at the places of the rows.
            topk_idx: as dispatched; not read. A second combine reads the tensor that was
                dispatched, which must not change until then.
            topk_weights: [tokens, topk] float32.
            zero_copy: whether results are in `get_next_low_latency_combine_buffer`; x is then not
                read. (Without it, x is read in place, too.)
            out: [tokens, hidden] bfloat16 to write to.

        Returns:
            [tokens, hidden] bfloat16, the event, and the hook if one was asked for.
        """
        refuse(others, "low_latency_combine")
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
        """Returns [local experts, ranks * tokens, hidden] bfloat16 memory for `zero_copy`."""
        check_handle(handle, LowLatencyHandle, "low_latency_dispatch")
        return self._serving.buffer(handle)

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Masks or unmasks a rank.

        Before any rank unmasks one, all must have drained their streams, and none may make a call
        until all have unmasked it. Afterwards, handles of batches that were not combined are
        rejected.

        Raises:
            InvalidArgument: a rank is to be unmasked while a hook was not called. Nothing has
                changed.
        """
        self._serving.update_mask(rank_to_mask, mask)

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Enqueues, on the current stream, a write of 1 for masked ranks and 0 for the others.

        Args:
            mask_status: [ranks] int32.
        """
        self._serving.write_mask(mask_status)

    def low_latency_clean_mask_buffer(self) -> None:
        """Unmasks all ranks; see `low_latency_update_mask_buffer`."""
        self._serving.clear_mask()

    def _require_hosts(self, call: str, instead: str) -> None:
        if self._hosts.count == 1:
            raise unsupported(call, f"all ranks are those of one host; call {instead}")

    def _require_low_latency(self, async_finish: bool, return_recv_hook: bool) -> None:
        if not self.low_latency_mode:
            raise invalid("low_latency_mode", "True of a buffer for low-latency calls", "False")
        if async_finish and return_recv_hook:
            raise invalid("async_finish", "False where a hook is asked for", "True")

    @property
    def _device(self) -> torch.device:
        index = self._world.device_index
        return torch.device("cpu") if index is None else torch.device("cuda", index)
