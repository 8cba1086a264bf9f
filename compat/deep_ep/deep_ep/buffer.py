"""`Buffer`: the calls of DeepEP's legacy API, over Tokenyard."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import tokenyard
from tokenyard.errors import invalid

from .config import Config
from .handles import DispatchHandle, check_handle
from .low_latency_calls import LowLatencyCalls
from .meeting import meet, timeout_of
from .refusal import unsupported
from .room import advised
from .routing import layout_of
from .runtime import Runtime
from .serving import Serving, arena_bytes
from .streams import CommunicationStream
from .throughput import Bias, Rows, Throughput
from .utils.event import EventHandle, EventOverlap

CONTROL_BYTES = 64 << 20
"""Of the arena beside what callers ask for: control words, and the rounding of sizes."""
RECEIVED_BYTES = 2 << 30
"""Of the arena beside `num_nvl_bytes`: received rows, which DeepEP takes from torch, lie there."""
DEFAULT_CHUNKS = (6, 256, 6, 256)
"""Of the configurations that are handed out; they mean nothing here."""


class Buffer(LowLatencyCalls):
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
            self._world = meet(group, device, size, seconds)
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

    @property
    def _device(self) -> torch.device:
        index = self._world.device_index
        return torch.device("cpu") if index is None else torch.device("cuda", index)
