"""Features of exchanges on GPUs beside their calls: streams, watchers, torch's memory."""

from __future__ import annotations

from typing import Any

import pytest

import tokenyard

try:
    import torch

    GPUS = torch.cuda.device_count()
except ModuleNotFoundError:
    GPUS = 0

pytestmark = pytest.mark.skipif(GPUS == 0, reason="needs torch and a GPU")
TOKENS, HIDDEN, TOPK = 200, 512, 4
ARENA_BYTES = 256 << 20


def make(world: tokenyard.World) -> tokenyard.ExpertParallel:
    torch.cuda.set_device(world.device_index)
    return tokenyard.ExpertParallel(
        world, experts=8 * world.size, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS
    )


def inputs(world: tokenyard.World, seed: int = 0) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(100 * seed + world.rank)
    x = torch.randint(-8, 9, (TOKENS, HIDDEN), generator=generator).to(torch.bfloat16)
    topk_idx = torch.rand(TOKENS, 8 * world.size, generator=generator).argsort(dim=1)[:, :TOPK]
    device = f"cuda:{world.device_index}"
    return x.to(device), topk_idx.contiguous().to(device), torch.ones(TOKENS, TOPK, device=device)


def sums(world: tokenyard.World, x: Any, topk_idx: Any) -> Any:
    """Returns the sums of rows that are returned unchanged; small integers, so exact."""
    went_to = torch.nn.functional.one_hot(topk_idx // 8, world.size).amax(1).sum(1)
    return (x.float() * went_to[:, None]).to(torch.bfloat16)


def run(layer: Any) -> None:
    tokenyard.launch(layer, ranks=GPUS, device="cuda", arena_bytes=ARENA_BYTES, timeout=20)


def test_a_communication_stream_waits_and_is_waited_for() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        x, topk_idx, weights = inputs(world)
        exchange.dispatch(x, topk_idx, weights)
        communication, compute = torch.cuda.Stream(), torch.cuda.current_stream()
        for _ in range(3):
            torch.cuda._sleep(20_000_000)  # Rows that are read too early would be the old ones.
            x += 1
            inputs_ready = compute.record_event()
            with torch.cuda.stream(communication):
                communication.wait_event(inputs_ready)
                received = exchange.dispatch(
                    x, topk_idx, weights, received_tokens_max=TOKENS * world.size
                )
                torch.cuda._sleep(20_000_000)
                home = exchange.combine(received.x, received.route)
                finished = communication.record_event()
            x.record_stream(communication)
            home.record_stream(compute)
            compute.wait_event(finished)
            assert torch.equal(home, sums(world, x, topk_idx))

    run(layer)


def test_low_latency_calls_keep_their_order_on_any_stream() -> None:
    """A dispatch sends on one stream and receives on another; the first gets the mask."""

    def layer(world: tokenyard.World) -> None:
        torch.cuda.set_device(world.device_index)
        exchange = tokenyard.LowLatency(
            world, experts=8 * world.size, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS
        )
        x, topk_idx, weights = inputs(world)
        weights /= TOPK
        mask = torch.full((world.size,), 7, dtype=torch.int32, device=x.device)
        communication, compute = torch.cuda.Stream(), torch.cuda.current_stream()
        for _ in range(3):
            torch.cuda._sleep(20_000_000)  # Tokens that are read too early would be the old ones.
            x += 1
            inputs_ready = compute.record_event()
            with torch.cuda.stream(communication):
                communication.wait_event(inputs_ready)
                rows = exchange.dispatch(x, topk_idx, rows="bf16", return_recv_hook=True)
                torch.cuda._sleep(20_000_000)
            rows.hook()
            home = exchange.combine(rows.x, rows, weights)
            with torch.cuda.stream(communication):
                exchange.write_mask(mask)
                finished = communication.record_event()
            compute.wait_event(finished)
            assert torch.equal(home.x, x)
            assert not mask.any()
        exchange.wait()

    run(layer)


def test_memory_used_on_another_stream_is_not_given_away() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        reader = torch.cuda.Stream()
        x, topk_idx, weights = inputs(world)
        for _ in range(4):
            received = exchange.dispatch(x, topk_idx, weights)
            expected = received.x.clone()
            reader.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(reader):
                torch.cuda._sleep(50_000_000)
                late = received.x + 0
            received.record_stream(reader)
            del received
            # A new dispatch would reuse the memory of rows that are dropped.
            for call in range(3):
                exchange.dispatch(x * (call + 2), topk_idx, weights)
            reader.synchronize()
            assert torch.equal(late, expected)

    run(layer)


def test_two_calls_in_flight_and_two_exchanges() -> None:
    def layer(world: tokenyard.World) -> None:
        exchanges = [make(world), make(world)]
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        given = [inputs(world, seed) for seed in range(2)]
        torch.cuda.synchronize()
        for exchange in (exchanges, exchanges[:1] * 2):
            received = []
            for which, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    received.append(
                        exchange[which].dispatch(
                            *given[which], received_tokens_max=TOKENS * world.size
                        )
                    )
            homes = []
            for which in (1, 0):
                with torch.cuda.stream(streams[which]):
                    homes.append(exchange[which].combine(received[which].x, received[which].route))
            torch.cuda.synchronize()
            for which, home in zip((1, 0), homes, strict=True):
                x, topk_idx, _ = given[which]
                assert torch.equal(home, sums(world, x, topk_idx))

    run(layer)


def test_a_watcher_is_told_who_has_come() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        watcher = torch.cuda.Stream()
        received = exchange.dispatch(*inputs(world), watcher=watcher)
        exchange.wait()
        assert received.sources_ready is not None
        assert received.sources_ready.tolist() == [1] * world.size
        assert received.experts_ready is not None
        assert received.experts_ready.tolist() == [1] * 8

    run(layer)


def test_a_gemm_writes_to_where_peers_read() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        x, topk_idx, weights = inputs(world)
        pool = world.mem_pool()
        identity = torch.eye(HIDDEN, dtype=torch.bfloat16, device=x.device)
        for _ in range(3):
            received = exchange.dispatch(x, topk_idx, weights)
            with torch.cuda.use_mem_pool(pool):
                y = received.x @ identity
            assert abs(y.data_ptr() - received.x.data_ptr()) < ARENA_BYTES
            home = exchange.combine(y, received.route)
            assert torch.equal(home, sums(world, x, topk_idx))
        del y, pool

    run(layer)


def test_a_released_arena_is_free_memory() -> None:
    def layer(world: tokenyard.World) -> None:
        exchange = make(world)
        received = exchange.dispatch(*inputs(world))
        home = exchange.combine(received.x, received.route)
        torch.cuda.synchronize()
        exchange.close()
        del exchange, received
        before = torch.cuda.mem_get_info()[0]
        world.release_arena()
        assert torch.cuda.mem_get_info()[0] - before > ARENA_BYTES // 2
        world.restore_arena()
        x, topk_idx, weights = inputs(world)
        exchange = make(world)
        received = exchange.dispatch(x, topk_idx, weights)
        again = exchange.combine(received.x, received.route)
        assert torch.equal(again, home)

    tokenyard.launch(layer, ranks=1, device="cuda", arena_bytes=ARENA_BYTES)
