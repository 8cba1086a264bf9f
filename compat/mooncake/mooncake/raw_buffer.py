"""`mooncake.ep.Buffer`: raw calls with addresses, over `mooncake.mooncake_ep_buffer.Buffer`.

Callers exchange keys, queue pairs and addresses among the ranks by themselves. Here these carry
what the ranks need to meet: rank 0's port, the secret that it draws, and whether hosts differ. So
the exchange is as safe as the caller's own connections, and `sync_ibgda_peers` makes the world.
"""

from __future__ import annotations

import secrets
import socket
import zlib
from collections.abc import Callable, Sequence

import torch

import tokenyard
from tokenyard.compat.hosts import host_identity, message_bytes, queues_per_peer
from tokenyard.errors import invalid
from tokenyard.world.rendezvous import HeldPort, Place, host_address

from .mooncake_ep_buffer import CONTROL_BYTES, TIMEOUT_S, Buffer, Handle
from .raw_memory import tensor_at

MAX_QP_COUNT = 256
"""Numbers of queue pairs that callers exchange; all are 0 here."""
Done = tuple["EventHandle | None", Callable[[], None] | None]
"""The end of a call, or the hook that receives."""


class EventHandle:
    """The end of a call, which is on the current stream."""

    def __init__(self, stream_ptr: int = 0) -> None:
        pass

    def current_stream_wait(self, stream_ptr: int = 0) -> None:
        """Does nothing: the call is on the current stream already."""

    def synchronize(self) -> None:
        """Waits for the current stream."""
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()


class RawBuffer:
    """One rank's memory and calls; `sync_ibgda_peers` is collective and comes first.

    Args:
        num_ep_buffer_bytes: arena bytes; room for messages is added where ranks are reached by put.
        disable_p2p: as of `mooncake_ep_buffer.Buffer`.
    """

    def __init__(
        self, rank: int, num_ranks: int, num_ep_buffer_bytes: int, disable_p2p: bool = False
    ) -> None:
        if not 0 <= rank < num_ranks:
            raise invalid("rank", f"0 to {num_ranks - 1}", str(rank))
        if num_ep_buffer_bytes < 0:
            raise invalid("num_ep_buffer_bytes", "0 or more", str(num_ep_buffer_bytes))
        self._rank, self._ranks = rank, num_ranks
        self._bytes, self._disable_p2p = num_ep_buffer_bytes, disable_p2p
        self._host_name = f"mooncake rank {rank}" if disable_p2p else None
        self._port = HeldPort()
        self._secret = secrets.randbits(126)
        self._buffer: Buffer | None = None
        self._handles: dict[int, Handle] = {}
        """By the address of `src_info`, which combine passes on."""
        on_gpu = torch.cuda.is_available()
        index = torch.cuda.current_device() if on_gpu else None
        self._device = torch.device("cpu") if index is None else torch.device("cuda", index)

    def ibgda_disabled(self) -> bool:
        """Returns False: the keys that callers then exchange say where ranks meet."""
        return False

    def p2p_enabled(self) -> bool:
        """Returns whether ranks of one host are reached by loads and stores."""
        return not self._disable_p2p

    def use_fast_path(self) -> bool:
        """Returns True: there is no slower path."""
        return True

    def is_roce(self) -> bool:
        """Returns False: callers exchange nothing more for it."""
        return False

    def get_mr_info(self) -> tuple[int, int]:
        """Returns the address and the port of this rank, and a number that a host's ranks share."""
        octets = socket.inet_aton(host_address())
        identity = host_identity(self._host_name).encode()
        return int.from_bytes(octets, "big") << 16 | self._port.number, zlib.crc32(identity) >> 1

    def get_gid(self) -> tuple[int, int]:
        """Returns the secret that this rank draws, in two numbers."""
        return self._secret >> 63, self._secret & (1 << 63) - 1

    def get_local_qpns(self) -> list[int]:
        """Returns zeros: the world's network makes its connections itself."""
        return [0] * MAX_QP_COUNT

    def get_local_lids(self) -> list[int]:
        """Returns zeros, like `get_local_qpns`."""
        return [0] * MAX_QP_COUNT

    def get_ipc_handle(self) -> list[int]:
        """Returns a zero: the world maps its arenas itself."""
        return [0]

    def update_local_qpns(self) -> None:
        """Does nothing; see `sync_ibgda_peers`."""

    def sync_nvlink_ipc_handles(
        self, remote_handles: Sequence[Sequence[int]], active_ranks_mask: Sequence[int]
    ) -> None:
        """Does nothing, like `get_ipc_handle`."""

    def sync_ibgda_peers(
        self,
        remote_addrs: Sequence[int],
        remote_keys: Sequence[int],
        peer_qpns: Sequence[Sequence[int]],
        peer_lids: Sequence[Sequence[int]],
        subnet_prefixes: Sequence[int],
        interface_ids: Sequence[int],
        active_ranks_mask: Sequence[int],
    ) -> None:
        """Makes the world of the ranks, or unmasks all of them if there is one. Collective."""
        if self._buffer is not None:
            self._buffer.update_ep_member()
            return
        address, port = remote_addrs[0] >> 16, remote_addrs[0] & 0xFFFF
        if self._rank != 0:
            self._port.release()
        secret = f"{subnet_prefixes[0]:016x}{interface_ids[0]:016x}"
        hosts = [theirs >> 16 for theirs in remote_addrs]
        host = socket.inet_ntoa(address.to_bytes(4, "big"))
        device = "host" if self._device.type == "cpu" else "cuda"
        puts = len(set(remote_keys)) > 1
        room = message_bytes(self._bytes, device) if puts else 0
        place = Place(
            host="127.0.0.1" if len(set(hosts)) == 1 else host,
            port=port,
            rank=self._rank,
            size=self._ranks,
            local_rank=self._device.index or 0,
            job=f"mooncake {port}",
            secret=secret,
            held=self._port if self._rank == 0 else None,
        )
        world = tokenyard.World._at(
            place,
            device=device,
            timeout=TIMEOUT_S,
            arena_bytes=self._bytes + room + CONTROL_BYTES,
            host_name=self._host_name,
            network=queues_per_peer(0),
        )
        self._buffer = Buffer(world, disable_p2p=self._disable_p2p)

    def dispatch(
        self,
        x_ptr: int,
        topk_idx_ptr: int,
        active_ranks_ptr: int,
        num_tokens: int,
        hidden: int,
        num_topk: int,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        timeout_us: int,
        use_fp8: bool,
        packed_recv_x_ptr: int,
        packed_recv_x_scales_ptr: int,
        packed_recv_count_ptr: int,
        packed_recv_src_info_ptr: int,
        packed_recv_layout_range_ptr: int,
        is_async: bool,
        return_recv_hook: bool,
        compute_stream_ptr: int,
    ) -> Done:
        """As `mooncake_ep_buffer.Buffer.dispatch`; results are copied to the given addresses."""
        rows, counts, handle, _, hook = self._made.dispatch(
            self._at(x_ptr, (num_tokens, hidden), torch.bfloat16),
            self._at(topk_idx_ptr, (num_tokens, num_topk), torch.int64),
            self._at(active_ranks_ptr, (self._ranks,), torch.int32),
            num_max_dispatch_tokens_per_rank,
            num_experts,
            timeout_us,
            use_fp8=use_fp8,
            return_recv_hook=return_recv_hook,
        )
        self._handles[packed_recv_src_info_ptr] = handle
        x, scales = rows if isinstance(rows, tuple) else (rows, None)

        def deliver() -> None:
            src_info, layout_range = handle[:2]
            for source, address in (
                (x.contiguous().view(torch.uint8), packed_recv_x_ptr),
                (counts, packed_recv_count_ptr),
                (src_info, packed_recv_src_info_ptr),
                (layout_range, packed_recv_layout_range_ptr),
                *([] if scales is None else [(scales.transpose(1, 2), packed_recv_x_scales_ptr)]),
            ):
                self._at(address, source.shape, source.dtype).copy_(source)

        return _done(deliver, hook)

    def combine(
        self,
        x_ptr: int,
        topk_idx_ptr: int,
        topk_weights_ptr: int,
        src_info_ptr: int,
        layout_range_ptr: int,
        active_ranks_ptr: int,
        num_local_experts: int,
        num_combined_tokens: int,
        hidden: int,
        num_topk: int,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        timeout_us: int,
        zero_copy: bool,
        combined_x_ptr: int,
        is_async: bool,
        return_recv_hook: bool,
        compute_stream_ptr: int,
    ) -> Done:
        """As `mooncake_ep_buffer.Buffer.combine`, of the last dispatch to that `src_info`."""
        handle = self._handles.get(src_info_ptr)
        if handle is None:
            raise invalid("src_info_ptr", "an address that a dispatch wrote to", hex(src_info_ptr))
        places, tokens = self._ranks * num_max_dispatch_tokens_per_rank, num_combined_tokens
        _, _, hook = self._made.combine(
            self._at(x_ptr, (num_local_experts, places, hidden), torch.bfloat16),
            self._at(topk_idx_ptr, (tokens, num_topk), torch.int64),
            self._at(topk_weights_ptr, (tokens, num_topk), torch.float32),
            self._at(active_ranks_ptr, (self._ranks,), torch.int32),
            timeout_us,
            handle,
            zero_copy,
            return_recv_hook=return_recv_hook,
            out=self._at(combined_x_ptr, (tokens, hidden), torch.bfloat16),
        )
        return _done(lambda: None, hook)

    @property
    def _made(self) -> Buffer:
        if self._buffer is None:
            raise invalid("runtime", "one whose sync_ibgda_peers was called", "one without a world")
        return self._buffer

    def _at(self, address: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return tensor_at(address, shape, dtype, self._device)


def _done(deliver: Callable[[], None], hook: Callable[[], None] | None) -> Done:
    if hook is None:
        deliver()
        return EventHandle(), None

    def receive() -> None:
        hook()
        deliver()

    return None, receive
