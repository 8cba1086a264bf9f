"""The mooncake package between hosts: paths, masks, members, and the room of messages."""

from __future__ import annotations

import os
from typing import Any

import pytest
from test_compat_mooncake import torch

import tokenyard
from tokenyard.world.rendezvous import HeldPort

if torch is not None:
    import mooncake.ep
    import torch.distributed as dist
    from mooncake.mooncake_ep_buffer import Buffer

pytestmark = pytest.mark.skipif(torch is None, reason="needs torch")

EXPERTS_PER_RANK, HIDDEN = 2, 256
SERVED = dict(num_max_dispatch_tokens_per_rank=2048, hidden=2048, num_ranks=2, num_experts=4)
"""An exchange that fits into a buffer without room for messages on one host alone."""


def exchange(buffer: Any, tokens_max: int = 8, hidden: int = HIDDEN, silent: int = -1) -> Any:
    """Sends a token to each rank, with identity experts; returns the sum of each token."""
    ranks, rank = buffer.group_size, buffer.rank
    experts = EXPERTS_PER_RANK * ranks
    x = torch.full((ranks, hidden), 1.0 + rank, dtype=torch.bfloat16)
    picks = torch.stack([torch.arange(0, experts, 2), torch.full((ranks,), 2 * rank + 1)], 1)
    active = torch.ones(ranks, dtype=torch.int32)
    timeout_us = -1 if silent < 0 else 3_000_000
    rows, counts, handle, event, _ = buffer.dispatch(
        x, picks, active, tokens_max, experts, timeout_us, use_fp8=False
    )
    event.current_stream_wait()
    weights = torch.tensor([[0.25, 0.75]]).expand(ranks, 2).contiguous()
    home, event, _ = buffer.combine(rows, picks, weights, active, timeout_us, handle)
    event.current_stream_wait()
    assert active.tolist() == [int(other != silent) for other in range(ranks)]
    assert counts.sum() == 2 * ranks - (silent >= 0)
    return home[:, 0].float() / (1 + rank)


def over_hosts(world: tokenyard.World, disable_p2p: bool) -> tuple[Any, ...]:
    buffer = Buffer(world, disable_p2p=disable_p2p)
    assert exchange(buffer).tolist() == [1.0] * world.size
    runtime = buffer.runtime
    (shape,) = buffer._exchanges.values()
    paths = shape.paths
    # The last rank misses a call, and comes back when members are updated.
    last = world.size - 1
    if world.rank != last:
        sums = exchange(buffer, silent=last)
        assert sums.tolist() == [1.0] * last + [0.75]
    world.barrier("no call is under way")
    buffer.connect(is_update=True)
    assert exchange(buffer).tolist() == [1.0] * world.size
    world.barrier("all calls are over")
    return paths, (runtime.ibgda_disabled(), runtime.p2p_enabled(), runtime.use_fast_path())


@pytest.mark.parametrize(("hosts", "ranks", "disable_p2p"), [(2, 2, True), (2, 4, False)])
def test_calls_over_two_hosts(hosts: int, ranks: int, disable_p2p: bool) -> None:
    seen = tokenyard.launch(
        over_hosts, ranks=ranks, hosts=hosts, arena_bytes=64 << 20, timeout=300, args=(disable_p2p,)
    )
    near = ranks // hosts
    for rank, (paths, said) in enumerate(seen):
        assert paths[rank] == "self"
        for other, path in enumerate(paths):
            if other != rank:
                assert path == ("load_store" if other // near == rank // near else "put")
        assert said == (False, not disable_p2p, True)


def serve_on_hosts(rank: int, port: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    size = Buffer.get_ep_buffer_size_hint(**SERVED)
    for disable_p2p in (True, False):
        if not disable_p2p:  # With it, each rank counts as a host by itself.
            os.environ["TOKENYARD_HOST_NAME"] = f"host {rank}"
        buffer = Buffer(dist.group.WORLD, size, disable_p2p=disable_p2p, device="host")
        sizes = SERVED["num_max_dispatch_tokens_per_rank"], SERVED["hidden"]
        assert exchange(buffer, *sizes).tolist() == [1.0, 1.0]
        (shape,) = buffer._exchanges.values()
        assert shape.paths[1 - rank] == "put"
        dist.barrier()
        del buffer, shape
    dist.destroy_process_group()


def test_room_for_messages_is_added_where_ranks_are_reached_so() -> None:
    port = HeldPort()
    torch.multiprocessing.spawn(serve_on_hosts, (port.number,), nprocs=2)


class RawCaller:
    """Exchanges what raw buffers give, and passes addresses, as Mooncake's own wrapper does."""

    def __init__(self, rank: int, disable_p2p: bool) -> None:
        size = mooncake.ep.get_ep_buffer_size_hint(8, HIDDEN, 2, 2 * EXPERTS_PER_RANK)
        self.rank = rank
        self.raw = mooncake.ep.Buffer(rank, 2, size, disable_p2p)
        assert self.raw.use_fast_path()
        assert not self.raw.ibgda_disabled()
        assert self.raw.p2p_enabled() == (not disable_p2p)
        self.connect()

    def connect(self) -> None:
        raw = self.raw
        mine = [*raw.get_mr_info(), *raw.get_gid()]
        assert all(-(1 << 63) <= number < 1 << 63 for number in mine)
        assert 0 <= mine[1] < 1 << 31
        everybodys = [torch.empty(4, dtype=torch.int64) for _ in range(2)]
        dist.all_gather(everybodys, torch.tensor(mine, dtype=torch.int64))
        raddrs, rkeys, prefixes, ids = torch.stack(everybodys, 1).tolist()
        pairs = [raw.get_local_qpns()] * 2, [raw.get_local_lids()] * 2
        raw.sync_ibgda_peers(raddrs, rkeys, *pairs, prefixes, ids, [1, 1])
        raw.sync_nvlink_ipc_handles([raw.get_ipc_handle()] * 2, [1, 1])

    def there_and_back(self, fp8: bool, hooks: bool) -> None:
        x = torch.full((2, HIDDEN), 1.0 + self.rank, dtype=torch.bfloat16)
        picks = torch.tensor([[0, 3], [2, -1]])
        active = torch.ones(2, dtype=torch.int32)
        rows = torch.empty(2, 16, HIDDEN, dtype=torch.float8_e4m3fn if fp8 else torch.bfloat16)
        scales = torch.empty(2, HIDDEN // 128, 16) if fp8 else None
        counts = torch.empty(2, dtype=torch.int32)
        src_info = torch.empty(2, 16, dtype=torch.int32)
        ranges = torch.empty(2, 2, dtype=torch.int64)
        sizes = 2, HIDDEN, 2, 8, 2 * EXPERTS_PER_RANK, -1
        given = [tensor.data_ptr() for tensor in (x, picks, active)]
        into = [0 if t is None else t.data_ptr() for t in (rows, scales, counts, src_info, ranges)]
        event, hook = self.raw.dispatch(*given, *sizes, fp8, *into, False, hooks, 0)
        (event.current_stream_wait if hook is None else hook)()
        assert counts.tolist() == [[2, 0], [2, 2]][self.rank]
        values = torch.nan_to_num(rows.float())
        if scales is not None:
            values *= torch.nan_to_num(scales.transpose(1, 2).repeat_interleave(128, 2))
        sources = torch.tensor([1.0, 2.0])
        for expert, count in enumerate(counts.tolist()):
            assert torch.allclose(values[expert, :count, 0], sources[:count], rtol=0.05)
        assert src_info[0, :2].tolist() == [[0, 0], [1, 1]][self.rank]
        assert (ranges & 0xFFFFFFFF).sum(1).tolist() == counts.tolist()
        y, out = values.to(torch.bfloat16), torch.empty_like(x)
        weights = torch.tensor([[0.25, 0.75], [0.5, 0.0]])
        given = [tensor.data_ptr() for tensor in (y, picks, weights, src_info, ranges, active)]
        sizes = 2, 2, HIDDEN, 2, 8, 2 * EXPERTS_PER_RANK, -1
        event, hook = self.raw.combine(*given, *sizes, False, out.data_ptr(), False, hooks, 0)
        (event.current_stream_wait if hook is None else hook)()
        expected = (1.0 + self.rank) * torch.tensor([1.0, 0.5])
        assert torch.allclose(out[:, 0].float(), expected, rtol=0.05)


def make_raw_calls(rank: int, port: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    for disable_p2p in (True, False):
        caller = RawCaller(rank, disable_p2p)
        for fp8, hooks in ((False, False), (True, True)):
            caller.there_and_back(fp8, hooks)
        dist.barrier()
        caller.raw.update_local_qpns()
        caller.connect()
        caller.there_and_back(False, True)
        dist.barrier()
    with pytest.raises(tokenyard.InvalidArgument, match="src_info"):
        caller.raw.combine(*[0] * 18)
    dist.destroy_process_group()


def test_raw_calls_with_addresses() -> None:
    port = HeldPort()
    torch.multiprocessing.spawn(make_raw_calls, (port.number,), nprocs=2)
