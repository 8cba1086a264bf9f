"""Exchanges go on with their job: the same objects, after ranks were lost, replaced and added."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ranks import Rank, file_store, ranks_of, results, results_of
from test_job import (
    ARENA_BYTES,
    check_exchange,
    check_sum,
    enter,
    exchange_on,
    experts_for,
    tokens_of,
    world_of,
)

import tokenyard

HIDDEN, TOKENS = 64, 24


class Serving:
    """A low-latency exchange in which every expert has a replica on the next rank."""

    def __init__(self, world: tokenyard.World) -> None:
        self.world = world
        experts = world.size
        self.exchange = tokenyard.LowLatency(
            world, experts=experts, hidden=HIDDEN, topk=2, tokens_max=TOKENS, places_per_rank=2
        )
        self.held: list[list[int]] = []
        self.exchange.on_experts_changed(self.held.append)

    def with_replicas(self) -> None:
        size = self.world.size
        self.exchange.set_expert_map(
            [expert for rank in range(size) for expert in (rank, (rank + 1) % size)]
        )

    def check(self) -> None:
        """Every expert returns its rows as they are."""
        rank, size = self.world.rank, self.world.size
        x = np.full((TOKENS, HIDDEN), rank + 1, ml_dtypes.bfloat16)
        first = (np.arange(TOKENS) + rank) % size
        idx = np.stack([first, (first + 1) % size], 1)
        weights = np.full((TOKENS, 2), 0.5, np.float32)
        got = self.exchange.dispatch(x, idx, rows="bf16", return_recv_hook=True)
        assert got.hook is not None
        got.hook()
        home = self.exchange.combine(got.x, got, weights, return_recv_hook=True)
        assert home.hook is not None
        home.hook()
        self.exchange.wait()
        assert not home.lost.any()
        np.testing.assert_array_equal(home.x, x)


def until_lost(exchange: tokenyard.ExpertParallel, world: Any, ranks: list[int]) -> None:
    with pytest.raises(tokenyard.PeerLost):
        dispatch_for_ever(exchange, world, ranks)


def dispatch_for_ever(exchange: tokenyard.ExpertParallel, world: Any, ranks: list[int]) -> None:
    while True:
        exchange.dispatch(tokens_of(world.rank), experts_for(ranks, world.rank))


def goes_on(exchange: tokenyard.ExpertParallel, world: Any, ranks: list[int]) -> None:
    """Exchanges with these ranks after a loss: the first call may name a call of before that has
    returned here, but not on all ranks."""
    try:
        check_exchange(exchange, world, ranks)
    except tokenyard.OperationAborted:
        check_exchange(exchange, world, ranks)


def go_on_after_a_kill(say: Any, rank: int, size: int, store: str, lost: int) -> None:
    everybody = list(range(size))
    survivors = [other for other in everybody if other != lost]
    with enter(rank, size, store) as job:
        world = world_of(job)
        exchange, other, serving = exchange_on(world), exchange_on(world), Serving(world)
        serving.with_replicas()
        serving.check()
        check_exchange(exchange, world, everybody)
        check_exchange(other, world, everybody)
        kept = exchange.dispatch(tokens_of(rank), experts_for(everybody, rank))
        batch = serving.exchange.dispatch(
            np.ones((1, HIDDEN), ml_dtypes.bfloat16), np.zeros((1, 2), np.int64), rows="bf16"
        )
        x, batch_x = np.array(kept.x), np.array(batch.x)
        say("working")
        until_lost(exchange, world, everybody)
        while job.recover() != survivors:
            time.sleep(0.01)
        refuse_what_is_gone(exchange, serving, kept, batch, rank, survivors)
        for _ in range(3):
            check_exchange(exchange, world, survivors)
            serving.check()
        check_sum(job.collectives().world(), rank, survivors)
        assert [masked.rank for masked in serving.exchange.failed_ranks()] == [lost]
        assert exchange.metrics()["dispatch_calls"] >= 5
        # Memory of before stays as it was for as long as somebody holds it.
        np.testing.assert_array_equal(kept.x, x)
        np.testing.assert_array_equal(batch.x, batch_x)
        world.barrier()
        # The other exchange was not used meanwhile: it follows now.
        check_exchange(other, world, survivors)
        arenas = mapped_arenas()
        del kept, batch
        gc.collect()
        assert mapped_arenas() < arenas
        world.barrier()


def mapped_arenas() -> int:
    """Returns the number of mapped pieces of memory that processes of the library share."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    return len({line.split()[4] for line in maps.splitlines() if "memfd:" in line})


def refuse_what_is_gone(
    exchange: tokenyard.ExpertParallel,
    serving: Serving,
    kept: Any,
    batch: Any,
    rank: int,
    survivors: list[int],
) -> None:
    weights = np.ones((1, 2), np.float32)
    for _ in range(2):  # Before the first call that goes on, and after it.
        with pytest.raises(tokenyard.InvalidArgument, match="dispatch again"):
            exchange.combine(kept.x, kept)
        with pytest.raises(tokenyard.InvalidArgument, match="dispatch again"):
            exchange.dispatch(tokens_of(rank), route=kept.route)
        with pytest.raises(tokenyard.InvalidArgument, match="ranks"):
            serving.exchange.combine(batch.x, batch, weights)
        goes_on(exchange, exchange.world, survivors)
        serving.check()
    with pytest.raises(tokenyard.InvalidArgument, match="copy what you keep"):
        exchange.dispatch(kept.x[:1], experts_for(survivors, rank)[:1])


@pytest.mark.parametrize(("size", "lost"), [(3, 1), (4, 0)])
def test_the_same_objects_go_on_after_a_kill(tmp_path: Path, size: int, lost: int) -> None:
    with ranks_of(go_on_after_a_kill, size, file_store(tmp_path), lost) as ranks:
        for rank in ranks:
            rank.hears("working")
        ranks[lost].kill()
        results([rank for rank in ranks if rank.number != lost])


def stay_and_admit(say: Any, rank: int, size: int, store: str, lost: int) -> tuple[int, list[Any]]:
    everybody = list(range(size))
    survivors = [other for other in everybody if other != lost]
    with enter(rank, size, store) as job:
        world = world_of(job)
        exchange, serving = exchange_on(world), Serving(world)
        serving.with_replicas()
        check_exchange(exchange, world, everybody)
        serving.check()
        say("working")
        until_lost(exchange, world, everybody)
        while job.recover() != survivors:
            time.sleep(0.01)
        goes_on(exchange, world, survivors)
        serving.check()
        say("without it")
        job.replace(lost)
        check_exchange(exchange, world, everybody)
        serving.check()
        return take_part(exchange, serving, job, world), serving.held


def take_part(
    exchange: tokenyard.ExpertParallel,
    serving: Serving,
    job: tokenyard.Job,
    world: tokenyard.World,
) -> int:
    everybody = list(range(world.size))
    for _ in range(3):
        check_exchange(exchange, world, everybody)
        serving.check()
        check_sum(job.collectives().world(), world.rank, everybody)
    assert serving.exchange.failed_ranks() == []
    assert serving.exchange.expert_map == [
        expert for rank in everybody for expert in (rank, (rank + 1) % world.size)
    ]
    epoch = job.epoch()
    world.barrier()
    return epoch


def come(say: Any, rank: int, size: int, store: str) -> tuple[int, list[Any]]:
    with enter(rank, size, store, join=True) as job:
        world = world_of(job)
        # Each where the members use theirs.
        exchange = exchange_on(world)
        check_exchange(exchange, world, list(range(size)))
        serving = Serving(world)
        serving.check()
        return take_part(exchange, serving, job, world), serving.held


@pytest.mark.parametrize(("size", "lost"), [(3, 2), (4, 0)])
def test_a_replacement_meets_the_same_objects(tmp_path: Path, size: int, lost: int) -> None:
    store = file_store(tmp_path)
    with ranks_of(stay_and_admit, size, store, lost) as ranks:
        survivors = [rank for rank in ranks if rank.number != lost]
        for rank in ranks:
            rank.hears("working")
        ranks[lost].kill()
        for rank in survivors:
            rank.hears("without it")
        newcomer = Rank(come, lost, size, store)
        try:
            ended = results([*survivors, newcomer])
        finally:
            newcomer.end()
    assert len({epoch for epoch, _ in ended}) == 1


def grow_and_exchange(say: Any, rank: int, size: int, store: str) -> list[int]:
    with enter(rank, size, store, size_max=size + 1) as job:
        world = world_of(job)
        exchange = tokenyard.ExpertParallel(
            world, experts=6, hidden=HIDDEN, topk=2, tokens_max=TOKENS, places_per_rank=3
        )
        exchange.set_expert_map([5, 4, 3, 2, 1, 0])
        say("working")
        job.grow(1)
        return exchange_among_three(exchange, world)


def exchange_among_three(exchange: tokenyard.ExpertParallel, world: tokenyard.World) -> list[int]:
    x = np.full((4, HIDDEN), world.rank + 1, np.float32)
    received = exchange.dispatch(x, np.tile([0, 5], (4, 1)))
    home = exchange.combine(np.array(received.x), received)
    np.testing.assert_array_equal(home, 2 * x)
    assert world.size == 3
    world.barrier()
    return exchange.expert_map


def grown(say: Any, rank: int, size: int, store: str) -> list[int]:
    with enter(rank, size, store, size_max=size + 1, join=True) as job:
        world = world_of(job)
        exchange = tokenyard.ExpertParallel(
            world, experts=6, hidden=HIDDEN, topk=2, tokens_max=TOKENS, places_per_rank=3
        )
        return exchange_among_three(exchange, world)


def test_a_grown_job_has_places_more(tmp_path: Path) -> None:
    store = file_store(tmp_path)
    with ranks_of(grow_and_exchange, 2, store) as ranks:
        for rank in ranks:
            rank.hears("working")
        newcomer = Rank(grown, 2, 2, store)
        try:
            maps = results([*ranks, newcomer])
        finally:
            newcomer.end()
    assert maps == [[5, 4, 3, 2, 1, 0, -1, -1, -1]] * 3


def time_out_and_go_on(say: Any, rank: int, size: int, store: str) -> str:
    """Nobody is lost: a rank was only late, and the exchange has failed for it on some ranks."""
    with enter(rank, size, store) as job:
        world = job.world(arena_bytes=8 << 20, timeout=6)
        exchange = exchange_on(world)
        everybody = list(range(size))
        check_exchange(exchange, world, everybody)
        world.barrier()
        error = "none"
        if rank != 0:
            try:
                exchange.dispatch(tokens_of(rank), experts_for(everybody, rank))
            except (tokenyard.PeerTimeout, tokenyard.PeerLost) as failure:
                error = type(failure).__name__
        else:
            time.sleep(8)
            with pytest.raises((tokenyard.PeerTimeout, tokenyard.PeerLost)):
                exchange.dispatch(tokens_of(rank), experts_for(everybody, rank))
        job.recover()
        goes_on(exchange, world, everybody)
        world.barrier()
        return error


def test_an_exchange_that_failed_for_a_late_rank_goes_on(tmp_path: Path) -> None:
    with ranks_of(time_out_and_go_on, 3, file_store(tmp_path)) as ranks:
        ended = results(ranks)
    assert ended[0] == "none"
    assert "none" not in ended[1:]


def evict_and_go_on(say: Any, rank: int, size: int, store: str) -> Any:
    everybody = list(range(size))
    with enter(rank, size, store) as job:
        world = world_of(job)
        exchange = exchange_on(world)
        check_exchange(exchange, world, everybody)
        if rank == 0:
            job.evict(2)
        if rank == 2:
            with pytest.raises((tokenyard.Fenced, tokenyard.OutOfTouch)):
                dispatch_for_ever(exchange, world, everybody)
            return None
        until_lost(exchange, world, everybody)
        job.shrink()
        goes_on(exchange, world, [0, 1])
        epoch = job.epoch()
        world.barrier()
        return epoch


def test_exchanges_go_on_without_an_evicted_rank(tmp_path: Path) -> None:
    with ranks_of(evict_and_go_on, 3, file_store(tmp_path)) as ranks:
        first, second, _ = results(ranks)
    assert first == second


def dispatch_on(
    say: Any, rank: int, size: int, store: str, on_failure: str, join: bool
) -> tuple[int, int]:
    """Dispatches without a recovery of its own; returns the epoch, and how often it was told that
    a call is undone."""
    with enter(rank, size, store, on_failure=on_failure, join=join) as job:
        world = world_of(job)
        exchange = exchange_on(world)
        say("working")
        undone, since, least = 0, 0, 0
        while least < 20:  # Every rank receives a row of each, so all stop in the same call.
            ranks = job.active_ranks() if on_failure == "exclude" else list(range(size))
            idx = np.full((TOKENS, 2), -1)
            idx[:, 0] = 2 * np.resize(ranks, TOKENS)
            try:
                received = exchange.dispatch(np.full((TOKENS, HIDDEN), since, np.float32), idx)
            except tokenyard.OperationAborted:
                undone += 1
                continue
            least = int(received.x.min())
            since += job.epoch() > (1 if on_failure == "exclude" else 2)
        exchange.wait()
        epoch = job.epoch()  # The next one begins when the first rank leaves.
        world.barrier()
        return epoch, undone


def test_exclude_goes_on_by_itself(tmp_path: Path) -> None:
    with ranks_of(dispatch_on, 4, file_store(tmp_path), "exclude", False) as ranks:
        for rank in ranks:
            rank.hears("working")
        time.sleep(0.3)
        ranks[2].kill()
        ended = results([rank for rank in ranks if rank.number != 2])
    assert {epoch for epoch, _ in ended} == {2}
    assert sum(undone for _, undone in ended) < len(ended)


def wait_in_vain(say: Any, rank: int, size: int, store: str) -> list[int]:
    with enter(rank, size, store, on_failure="exclude") as job:
        world = job.world(arena_bytes=ARENA_BYTES, timeout=3)
        exchange = exchange_on(world)
        check_exchange(exchange, world, [0, 1])
        if rank == 1:  # It lives, and makes no call.
            while job.active_ranks():
                time.sleep(0.01)
            return []
        idx = np.full((TOKENS, 2), -1)
        idx[:, 0] = 0
        received = exchange.dispatch(np.ones((TOKENS, HIDDEN), np.float32), idx)
        assert (received.x == 1).all()
        return job.active_ranks()


def test_exclude_leaves_out_one_of_two_that_makes_no_call(tmp_path: Path) -> None:
    assert results_of(wait_in_vain, 2, file_store(tmp_path)) == [[0], []]


def test_retry_waits_for_the_replacement(tmp_path: Path) -> None:
    store = file_store(tmp_path)
    with ranks_of(dispatch_on, 3, store, "retry", False) as ranks:
        for rank in ranks:
            rank.hears("working")
        ranks[1].kill()
        newcomer = Rank(dispatch_on, 1, 3, store, "retry", True)
        try:
            newcomer.hears("working")
            ended = results([ranks[0], ranks[2], newcomer])
        finally:
            newcomer.end()
    assert len({epoch for epoch, _ in ended}) == 1
