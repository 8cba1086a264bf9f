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


def test_raw_calls_say_what_to_use_instead() -> None:
    assert mooncake.ep.get_ep_buffer_size_hint(**SERVED) == Buffer.get_ep_buffer_size_hint(**SERVED)
    with pytest.raises(tokenyard.Unsupported, match="mooncake_ep_buffer"):
        mooncake.ep.Buffer(0, 2, 1 << 20)
