"""The deep_ep package between hosts: DeepEP's calls there, its ranks of hosts, its room."""

from __future__ import annotations

import os
import types
from typing import Any

import pytest
from deep_ep_batch import needs_torch, torch

import tokenyard
from tokenyard.world.rendezvous import HeldPort

if torch is not None:
    import deep_ep
    import torch.distributed as dist
    from deep_ep_internode import ARENA_BYTES, NVL_BYTES, Sizes, exercise

    from tokenyard.compat import hosts as hosts_of_groups
    from tokenyard.compat.reach import require_reach

pytestmark = needs_torch


def run_on_hosts(program: Any, hosts: int, ranks_per_host: int, *arguments: Any) -> list[Any]:
    return tokenyard.launch(
        program,
        ranks=hosts * ranks_per_host,
        hosts=hosts,
        arena_bytes=ARENA_BYTES,
        timeout=300,
        args=arguments,
    )


@pytest.mark.parametrize(
    ("ranks_per_host", "chosen"),
    [(1, slice(None)), (2, slice(0, None, 3))],  # Contents and ids in turn.
)
def test_the_calls_of_deep_eps_test_between_hosts(ranks_per_host: int, chosen: slice) -> None:
    """See deep_ep_internode.py, which also makes them over two hosts of eight ranks."""
    first = run_on_hosts(exercise, 2, ranks_per_host, Sizes(), chosen)
    if ranks_per_host == 2:
        assert first == run_on_hosts(exercise, 2, ranks_per_host, Sizes(), chosen)


def calls_under_their_own_names(world: tokenyard.World) -> None:
    buffer = deep_ep.Buffer(world, NVL_BYTES, num_rdma_bytes=1 << 20)
    runtime, host, rail = buffer.runtime, world.rank // 2, world.rank % 2
    assert (runtime.get_rdma_rank(), runtime.get_num_rdma_ranks()) == (host, 2)
    assert (runtime.get_root_rdma_rank(True), runtime.get_root_rdma_rank(False)) == (rail, 0)
    x = torch.full((3, 64), float(world.rank), dtype=torch.bfloat16)
    ids = torch.tensor([[0, 3], [3, -1], [-1, -1]])
    per_rank, per_host, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, 4)
    assert per_rank.tolist() == [1, 0, 0, 2]
    assert per_host.tolist() == [1, 2]
    assert per_host.dtype == torch.int32
    rows, *_, handle, _ = buffer.internode_dispatch(
        x, None, per_rank, per_host, in_rank, per_expert, ids, torch.ones(3, 2), config=None
    )
    received = [4, 0, 0, 8][world.rank]
    assert (len(rows), len(handle), handle[-4].tolist()[-1]) == (received, 10, received)
    assert handle[1:6] == handle[8:10] + (None,) * 3 == (None,) * 5
    home, none, _ = buffer.internode_combine(rows, handle)
    assert none is None
    assert home[:, 0].tolist() == [2.0 * world.rank, world.rank, 0]
    worst, *_ = buffer.dispatch(
        x, topk_idx=ids, num_tokens_per_expert=per_expert, num_worst_tokens=11
    )
    assert len(worst) == 11
    assert torch.equal(worst[:received], rows)
    world.barrier("the calls are over")


def test_calls_that_only_hosts_have() -> None:
    run_on_hosts(calls_under_their_own_names, 2, 2)


def rings(world: tokenyard.World) -> list[int]:
    sizes = []
    for config in (deep_ep.Buffer.get_dispatch_config(2), deep_ep.Config(8, 6, 256, 4, 40)):
        buffer = deep_ep.Buffer(world, NVL_BYTES, explicitly_destroy=True)
        ids = torch.tensor([[0, 1]])
        per_expert = torch.ones(2, dtype=torch.int32)
        x = torch.ones(1, 4096, dtype=torch.bfloat16)
        buffer.dispatch(x, topk_idx=ids, num_tokens_per_expert=per_expert, config=config)
        sizes.append(config.ring_rows(buffer.runtime.get_num_rdma_ranks(), 2 * 4096))
        sizes.append(config.chunk_rows(buffer.runtime.get_num_rdma_ranks()))
        world.barrier("the calls are over")
        buffer.destroy()
    return sizes


def test_a_config_sizes_the_rings_between_hosts() -> None:
    assert run_on_hosts(rings, 2, 1) == [[0, 0, 4 * 40, 4]] * 2
    config = deep_ep.Config(24, 8, 512, 16, 128)
    assert config.ring_rows(1, 14336) == config.chunk_rows(1) == 0
    assert [config.get_rdma_buffer_size_hint(14336, ranks) for ranks in (2, 8)] == [0, 0]
    for ranks, links in ((16, 1), (24, 2), (64, 7)):
        hint = config.get_rdma_buffer_size_hint(14336, ranks)
        assert hint == 2 * links * config.ring_rows(links + 1, 14336) * (14336 + 512)
        assert (60 << 20) < hint <= (64 << 20) or (links == 1 and hint == 2 * 1536 * (14336 + 512))


SERVED = dict(num_max_dispatch_tokens_per_rank=2048, hidden=2048, num_experts=64)
"""An exchange that fits into a buffer without room for messages on one host alone."""


def serve_on_hosts(rank: int, port: int) -> None:
    os.environ["TOKENYARD_HOST_NAME"] = f"host {rank}"
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(num_ranks=2, **SERVED)
    assert size > 60 << 20
    buffer = deep_ep.Buffer(
        dist.group.WORLD,
        0,
        size,
        low_latency_mode=True,
        num_qps_per_rank=12,
        explicitly_destroy=True,
        device="host",
    )
    assert buffer.runtime.get_num_rdma_ranks() == 2
    x = torch.full((4, SERVED["hidden"]), 1.0 + rank, dtype=torch.bfloat16)
    ids = torch.tensor([[0, 40], [1, 41], [2, 3], [50, -1]])
    tokens, experts = SERVED["num_max_dispatch_tokens_per_rank"], SERVED["num_experts"]
    rows, counts, handle, *_ = buffer.low_latency_dispatch(x, ids, tokens, experts, use_fp8=False)
    assert counts.sum() == [8, 6][rank]
    weights = torch.full((4, 2), 0.5)
    home, *_ = buffer.low_latency_combine(rows, ids, weights, handle)
    assert home[:, 0].tolist() == [1.0 + rank] * 3 + [(1.0 + rank) / 2]
    (exchange,) = buffer._serving._exchanges.values()
    assert exchange.paths[1 - rank] == "put"
    dist.barrier()
    buffer.destroy()
    dist.destroy_process_group()


def test_room_for_messages_is_added_where_a_group_spans_hosts() -> None:
    port = HeldPort()
    torch.multiprocessing.spawn(serve_on_hosts, (port.number,), nprocs=2)


class WorldOfReaches:
    """A world in which rank 0 reaches others as is said, and ranks 0 and 1 share a host."""

    rank = 0

    def __init__(self, *reaches: str) -> None:
        peers = [types.SimpleNamespace(reach=reach, why_not="") for reach in reaches]
        self.topology = types.SimpleNamespace(peers=peers, host_of=[0, 0, 1][: len(peers)])

    def all_gather(self, mine: bytes, what: str) -> list[bytes]:
        return [mine]


@pytest.mark.parametrize(
    ("reaches", "refused"),
    [
        (("self", "load_store", "put_signal"), None),
        (("self", "put_signal", "put_signal"), 1),  # On this host memory has to join them.
        (("self", "load_store", "none"), 2),
    ],
)
def test_ranks_out_of_reach_are_refused_when_a_buffer_is_made(
    reaches: tuple[str, ...], refused: int | None
) -> None:
    world: Any = WorldOfReaches(*reaches)
    if refused is None:
        return require_reach(world, "Buffer", "DeepEP", hosts=True)
    with pytest.raises(tokenyard.Unsupported, match=f"rank 0 cannot reach rank {refused}"):
        require_reach(world, "Buffer", "DeepEP", hosts=True)
    return None


def test_hosts_are_told_apart_before_a_world_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENYARD_HOST_NAME", raising=False)
    here = hosts_of_groups.host_identity()
    assert here == hosts_of_groups.host_identity()
    assert not hosts_of_groups.spans_hosts(lambda text: [text, here])
    monkeypatch.setenv("TOKENYARD_HOST_NAME", "another")
    assert hosts_of_groups.spans_hosts(lambda text: [text, here])
    assert hosts_of_groups.spans_hosts(lambda text: [text, here], "a third")
    monkeypatch.setenv("TOKENYARD_NETWORK_QUEUES", "5")
    assert hosts_of_groups.queues_per_peer(24) is None
    monkeypatch.delenv("TOKENYARD_NETWORK_QUEUES")
    asked = [hosts_of_groups.queues_per_peer(n) for n in (0, 24, 9999)]
    assert [network.queues for network in asked if network is not None] == [8, 24, 1024]
