"""`ElasticBuffer`: DeepEP's second API, over Tokenyard."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import tokenyard
from tokenyard.compat.hosts import QUEUES_MIN, queues_per_peer
from tokenyard.compat.reach import require_reach
from tokenyard.errors import invalid

from .elastic_elsewhere import refuses_calls_elsewhere
from .elastic_exchanges import ElasticExchanges
from .elastic_handle import EPHandle
from .elastic_sizes import buffer_bytes
from .handles import check_handle
from .rdma_ranks import RdmaRanks
from .refusal import unsupported
from .rendezvous import join_rendezvous
from .room import advised
from .streams import CommunicationStream, Moment
from .throughput import SMS_MAX, Bias, Rows
from .utils.event import EventHandle, EventOverlap

CONTROL_BYTES = 64 << 20
"""Arena bytes beyond those that callers request: control words, and rounded sizes."""
SMS = 16
"""Default multiprocessors of a call: enough to saturate the links of a host."""

Dispatched = tuple[Rows, torch.Tensor | None, torch.Tensor | None, EPHandle, EventOverlap]
"""Rows, ids, weights, the handle, the event."""


@refuses_calls_elsewhere
class ElasticBuffer:
    """One rank's memory and calls. Collective: all ranks of a group make it and its calls together.

    Args:
        group: as for `Buffer`.
        num_bytes: memory for received rows, which take space until their tensors are dropped, and
            rows by expert until their handles are, too. None: derived from the next three.
        num_max_tokens_per_rank: default largest number of tokens per rank and call.
        hidden, num_topk: elements and experts per token.
        allow_multiple_reduction: whether rows by expert are summed and rounded on their rank
            before they are sent. If not, they are summed and sent in float32.
        num_gpu_timeout_secs: deadline of every wait.
        explicitly_destroy: whether `destroy` will be called.
        deterministic: no effect; calls are always deterministic.
        num_allocated_qps: queues per peer between hosts, as `num_qps_per_rank` of `Buffer`.
        use_fp8_dispatch, allow_hybrid_mode, prefer_overlap_with_compute, sl_idx,
            num_cpu_timeout_secs: no effect.
        device: "cuda" or "host"; None for "cuda" if there are GPUs.

    Raises:
        Unsupported: a rank of this host is not within reach of loads and stores, or one of another
            host not within reach of the network.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | tokenyard.World,
        num_bytes: int | None = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
        device: str | None = None,
    ) -> None:
        if num_cpu_bytes:
            raise unsupported("num_cpu_bytes", "all of a buffer is memory of its device")
        if num_bytes is None:
            if num_max_tokens_per_rank <= 0 or hidden <= 0:
                raise invalid("num_bytes", "given, or num_max_tokens_per_rank and hidden", "None")
            num_bytes = self.get_buffer_size_hint(group, num_max_tokens_per_rank, hidden, num_topk)
        self.group = group
        self.num_bytes, self.num_max_tokens_per_rank = num_bytes, num_max_tokens_per_rank
        self.deterministic = deterministic
        self.allow_hybrid_mode = allow_hybrid_mode
        self.allow_multiple_reduction = allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.explicitly_destroy = explicitly_destroy
        self.num_allocated_qps = num_allocated_qps
        self._owns_world = not isinstance(group, tokenyard.World)
        if isinstance(group, tokenyard.World):
            self._world = group
        else:
            self._world = join_rendezvous(
                group,
                device,
                num_bytes + CONTROL_BYTES,
                num_gpu_timeout_secs,
                network=queues_per_peer(num_allocated_qps),
            )
        require_reach(self._world, "ElasticBuffer", "DeepEP", hosts=True)
        self._hosts = RdmaRanks(self._world)
        self.rank_idx, self.num_ranks = self._world.rank, self._world.size
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.scaleout_rank_idx, self.scaleup_rank_idx = 0, self.rank_idx
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()
        self._stream = CommunicationStream(self._world.device_index)
        self._exchanges = ElasticExchanges(self._world, num_max_tokens_per_rank)
        self._advice = (
            f"num_bytes, here {num_bytes}, bounds the rows that calls bring, which their tensors"
            " keep until they die, and handles, too, of rows by expert"
        )
        self._barrier_exchange: tokenyard.ExpertParallel | None = None

    def destroy(self) -> None:
        """Frees the buffer. Collective; no call may follow."""
        if not self.explicitly_destroy:
            raise invalid("explicitly_destroy", "True of a buffer that is destroyed", "False")
        self._exchanges.close()
        if self._barrier_exchange is not None:
            self._barrier_exchange.close()
        if self._owns_world:
            self._world.close()

    @staticmethod
    def get_buffer_size_hint(
        group: dist.ProcessGroup | tokenyard.World,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """Returns the `num_bytes` for calls of these sizes."""
        ranks = group.size if isinstance(group, tokenyard.World) else group.size()
        return buffer_bytes(ranks, num_max_tokens_per_rank, hidden, num_topk)

    @staticmethod
    def capture() -> EventHandle:
        """Returns an event after all work that the current stream holds now."""
        return EventHandle()

    def get_comm_stream(self) -> torch.cuda.Stream:
        """Returns the stream of calls with `async_with_compute_stream`."""
        if self._stream.stream is None:
            raise unsupported("get_comm_stream", "there are no streams on the host")
        return self._stream.stream

    def get_physical_domain_size(self) -> tuple[int, int]:
        """Returns the number of hosts, and the ranks of the largest one."""
        return self._hosts.count, self._hosts.largest

    def get_logical_domain_size(self) -> tuple[int, int]:
        """Returns (1, ranks): rows and handles are those of one domain, over hosts, too."""
        return 1, self.num_ranks

    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 200,
        sm_write_gbs: float = 50,
    ) -> int:
        """Returns the multiprocessors that saturate the links, whatever rates are passed.

        More make no call faster.
        """
        return SMS

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """Returns the queues per peer that suffice between hosts; 0 on one host."""
        return QUEUES_MIN if self._hosts.count > 1 else 0

    def barrier(
        self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True
    ) -> None:
        """Orders later work on the current stream after all ranks' work so far. Collective."""
        with self._stream.turn((), async_finish=use_comm_stream) as turn:
            self._meet_on_device()
        turn.end.current_stream_wait()
        if with_cpu_sync and self._stream.stream is not None:
            torch.cuda.synchronize(self._stream.stream.device)

    def _meet_on_device(self) -> None:
        """Enqueues a dispatch without tokens, which ends once all ranks have reached it."""
        if self._barrier_exchange is None:
            self._barrier_exchange = tokenyard.ExpertParallel(
                self._world, experts=self.num_ranks, hidden=8, topk=1, tokens_max=1, sms=1
            )
        index = self._world.device_index
        device = torch.device("cpu") if index is None else torch.device("cuda", index)
        none = torch.empty(0, 8, dtype=torch.bfloat16, device=device)
        ids = torch.empty(0, 1, dtype=torch.int64, device=device)
        self._barrier_exchange.dispatch(none, ids, ids.to(torch.float32), received_tokens_max=1)

    def dispatch(
        self,
        x: Rows,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Moment = None,
        previous_event_before_epilogue: Moment = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> Dispatched:
        """Sends each token to the ranks that hold its experts. Collective.

        Args:
            x: [tokens, hidden] bfloat16; or a tuple of float8_e4m3fn and [tokens, words] scales of
                four bytes.
            topk_idx, topk_weights: [tokens, topk] int64 or int32, and float32; weights are
                optional. With a handle, ids must be None; new weights are accepted.
            num_experts, num_max_tokens_per_rank, expert_alignment: with a handle, the handle's or
                None.
            cumulative_local_expert_recv_stats: [local experts] int32 to which received rows are
                added.
            expert_alignment: with `do_expand`, each expert's first row is a multiple of this;
                otherwise counts are rounded up to it.
            do_cpu_sync: False: the host does not wait, and tensors have places for all tokens of
                all ranks.
            do_handle_copy: whether the handle holds a copy of topk_idx instead of the tensor.
            do_expand: whether rows are grouped by expert; padding between experts is undefined,
                perhaps NaN, with weights and scales of 0.
            do_zero_padding: whether padding is zeros; requires `do_expand`. With a handle, it need
                not agree with the first dispatch.
            use_tma_aligned_col_major_sf: whether to receive scales by columns, 16-byte aligned.

        Returns:
            Received x, ids (of this rank's experts, or -1; None for rows by expert), weights
            ([rows, topk], or [rows] by expert), the handle and the event.
        """
        if do_zero_padding and not do_expand:
            raise invalid("do_zero_padding", "False without do_expand", "True")
        events = (previous_event, previous_event_before_epilogue)
        weights: torch.Tensor | None
        with (
            advised(self._advice),
            self._stream.turn(events, async_with_compute_stream) as turn,
        ):
            if handle is None:
                if topk_idx is None or num_experts is None:
                    raise invalid("topk_idx", "given with num_experts, or a handle", "neither")
                handle, received = self._exchanges.first(
                    x,
                    topk_idx,
                    topk_weights,
                    num_experts=num_experts,
                    tokens_max=num_max_tokens_per_rank or self.num_max_tokens_per_rank,
                    alignment=expert_alignment or 1,
                    sms=num_sms or SMS,
                    copies_ids=do_handle_copy,
                    waits=do_cpu_sync is not False,
                    expands=do_expand,
                    clears_padding=do_zero_padding,
                    by_columns=use_tma_aligned_col_major_sf,
                )
                rows: Any = handle.rows or received
                got = rows.x if rows.scales is None else (rows.x, rows.scales)
                weights = received.topk_weights if handle.rows is None else handle.rows.weights
                if topk_weights is None:
                    weights = None
                if handle.rows is not None:
                    handle.rows.forget_rows()
                if cumulative_local_expert_recv_stats is not None:
                    cumulative_local_expert_recv_stats += received.tokens_per_expert_on_device
            else:
                check_handle(handle, EPHandle, "dispatch")
                if topk_idx is not None:
                    raise invalid("handle", "no topk_idx beside it", "both")
                if do_cpu_sync:
                    raise invalid("do_cpu_sync", "False with a handle, which has counts", "True")
                if cumulative_local_expert_recv_stats is not None:
                    raise invalid(
                        "cumulative_local_expert_recv_stats",
                        "None with a handle, whose rows were counted",
                        "a tensor",
                    )
                handle.check_same(
                    num_experts=num_experts,
                    num_max_tokens_per_rank=num_max_tokens_per_rank,
                    expert_alignment=expert_alignment,
                    do_expand=do_expand,
                )
                got, weights = self._exchanges.again(
                    x,
                    topk_weights,
                    handle,
                    sms=num_sms or SMS,
                    clears_padding=do_zero_padding,
                    by_columns=use_tma_aligned_col_major_sf,
                )
            turn.uses(*(x if isinstance(x, tuple) else (x,)), topk_idx, topk_weights)
            turn.uses(cumulative_local_expert_recv_stats)
            ids = None if handle.do_expand else handle.received_topk_idx()
        if async_with_compute_stream:
            self._stream.caller_uses(*(got if isinstance(got, tuple) else (got,)), ids, weights)
        return got, ids, weights, handle, turn.end

    def combine(
        self,
        x: torch.Tensor,
        handle: EPHandle,
        topk_weights: torch.Tensor | None = None,
        bias: Bias = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Moment = None,
        previous_event_before_epilogue: Moment = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """Returns to each token its biases plus the sum of its results over its ranks. Collective.

        Sums are in float32, in DeepEP's order. Between hosts they are in the order of the ranks,
        and each other host's sum is rounded once before.

        Args:
            x: [rows, hidden] bfloat16 in the layout of the dispatch's rows; rows by expert are
                first summed on their rank.
            topk_weights: [rows, topk] float32, or [rows] by expert, to return beside the rows.
            bias: one or two [tokens, hidden] tensors with which the sums begin.

        Returns:
            [tokens, hidden] bfloat16, [tokens, topk] float32 or None, and the event.
        """
        check_handle(handle, EPHandle, "dispatch")
        events = (previous_event, previous_event_before_epilogue)
        with (
            advised(self._advice),
            self._stream.turn(events, async_with_compute_stream) as turn,
        ):
            biases = () if bias is None else bias if isinstance(bias, tuple) else (bias,)
            y, beside, weights = x, biases, topk_weights
            if handle.rows is not None:
                weights = None if weights is None else handle.weights_of_rows(weights)
                if not self.allow_multiple_reduction:
                    y, beside = x.float(), tuple(each.float() for each in biases)
            # Two addends without a bias need no order.
            ordered = self._hosts.count == 1 and (self.num_ranks > 2 or biases)
            home: Any = handle.exchange.combine(
                y,
                handle.route,
                weights,
                out=y.new_empty(handle.route.tokens, y.size(1)),
                bias=beside,
                rank_order=handle.rank_order if ordered else None,
                by_expert=handle.rows,
                sms=min(num_sms or handle.num_sms, SMS_MAX),
            )
            out = home if weights is None else home.x
            home_weights = None if weights is None else home.topk_weights
            out = out.to(x.dtype)
            turn.uses(x, topk_weights, *biases)
        if async_with_compute_stream:
            self._stream.caller_uses(out, home_weights)
        return out, home_weights, turn.end
