"""One job beneath worlds and collectives: a death is learned once, by both, and put behind both."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import Rank, file_store, ranks_of, results

import tokenyard

SECRET = "of the tests of jobs"
ARENA_BYTES = 8 << 20
HIDDEN, TOKENS = 64, 24
SOON_S = 1.0
"""Seconds within which a death is known to everything on a job, and named."""


def enter(rank: int, size: int, store: str, **options: Any) -> tokenyard.Job:
    return tokenyard.connect(store, secret=SECRET, rank=rank, size=size, timeout=20, **options)


def world_of(job: tokenyard.Job) -> tokenyard.World:
    return job.world(arena_bytes=ARENA_BYTES, timeout=20)


def exchange_on(world: tokenyard.World) -> tokenyard.ExpertParallel:
    return tokenyard.ExpertParallel(
        world, experts=2 * world.size, hidden=HIDDEN, topk=2, tokens_max=TOKENS
    )


def tokens_of(rank: int) -> np.ndarray:
    numbers = np.arange(TOKENS * HIDDEN, dtype=np.float32).reshape(TOKENS, HIDDEN)
    return numbers + 10_000 * rank


def experts_for(ranks: list[int], rank: int) -> np.ndarray:
    """Two experts per token, on two of these ranks in turn."""
    first = np.arange(TOKENS) + rank
    ranks_in_turn = np.array(ranks)
    places = [ranks_in_turn[(first + step) % len(ranks)] for step in range(2)]
    return np.stack([2 * place + step for step, place in enumerate(places)], axis=1)


def check_exchange(exchange: tokenyard.ExpertParallel, world: Any, ranks: list[int]) -> None:
    """Each expert returns its row unchanged, so a token comes back times its weights' sum."""
    mine = tokens_of(world.rank)
    weights = np.full((TOKENS, 2), 0.5, np.float32)
    received = exchange.dispatch(mine, experts_for(ranks, world.rank), weights)
    home = exchange.combine(np.array(received.x), received)
    exchange.wait()
    copies = np.array(
        [len(set(experts // 2)) for experts in experts_for(ranks, world.rank)], np.float32
    )
    np.testing.assert_array_equal(home, mine * copies[:, None])


def check_sum(group: tokenyard.Group, rank: int, ranks: list[int]) -> None:
    array = np.full(1000, rank + 1, np.int64)
    group.all_reduce(array).wait()
    assert (array == sum(ranks) + len(ranks)).all()


def until_lost(call: Any) -> tuple[list[int], float]:
    """Returns the ranks that the error names, and when it was raised."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            call()
        except tokenyard.PeerLost as error:
            return [error.rank], time.monotonic()
        except tokenyard.OperationAborted as error:
            return list(error.lost), time.monotonic()
    raise AssertionError("nobody was lost")


class Both:
    """Dispatches in a thread of its own while this thread reduces, until each names a lost rank."""

    def __init__(self, job: tokenyard.Job, world: tokenyard.World) -> None:
        ranks = job.active_ranks()
        exchange = exchange_on(world)
        mine, experts = tokens_of(world.rank), experts_for(ranks, world.rank)
        everybody = job.collectives().world()
        gradient = np.zeros(100_000, np.float32)
        self._named: list[Any] = [None, None]

        def loop(at: int, call: Any) -> None:
            self._named[at] = until_lost(call)

        calls = [
            lambda: exchange.dispatch(mine, experts),
            lambda: everybody.all_reduce(gradient).wait(),
        ]
        self._threads = [
            threading.Thread(target=loop, args=(at, call)) for at, call in enumerate(calls)
        ]
        for thread in self._threads:
            thread.start()

    def named(self) -> list[tuple[list[int], float]]:
        for thread in self._threads:
            thread.join(40)
        return self._named


def lose(say: Any, rank: int, size: int, store: str, lost: list[int]) -> list[Any]:
    with enter(rank, size, store) as job:
        world = world_of(job)
        assert world.job.epoch() == job.epoch() == 1
        both = Both(job, world)
        say("working")
        named = both.named()
        survivors = [other for other in range(size) if other not in lost]
        while job.recover() != survivors:  # Two deaths may be learned one after the other.
            time.sleep(0.01)
        world = world_of(job)
        assert (world.rank, world.size) == (rank, size)
        exchange = exchange_on(world)
        check_exchange(exchange, world, survivors)
        check_sum(job.collectives().world(), rank, survivors)
        metrics = job.metrics()
        assert (metrics["lost"], metrics["active_ranks"]) == (len(lost), survivors)
        assert "tokenyard_job_lost_total" in tokenyard.prometheus_text(metrics)
        world.barrier()
        return named


@pytest.mark.parametrize(("size", "lost"), [(4, [2]), (4, [0]), (5, [1, 3])])
def test_tokens_and_gradients_learn_of_a_death_together(
    tmp_path: Path, size: int, lost: list[int]
) -> None:
    with ranks_of(lose, size, file_store(tmp_path), lost) as ranks:
        for rank in ranks:
            rank.hears("working")
        time.sleep(0.3)
        killed_at = time.monotonic()
        for victim in lost:
            os.kill(ranks[victim].process.pid or 0, signal.SIGKILL)
        survivors = [rank for rank in ranks if rank.number not in lost]
        for named in results(survivors):
            for names, raised_at in named:
                assert names
                assert set(names) <= set(lost)
                assert raised_at - killed_at < SOON_S


def stay_and_replace(say: Any, rank: int, size: int, store: str, lost: int) -> int:
    with enter(rank, size, store) as job:
        world = world_of(job)
        joined = job.metrics()["joined"]
        both = Both(job, world)
        say("working")
        both.named()
        # Survivors compute on while a replacement boots, and let it in when they choose to. The
        # first to choose lets it in for all: a survivor that looks later finds nobody waiting.
        while job.waiting() != [lost] and job.metrics()["joined"] == joined:
            time.sleep(0.01)
        job.replace(lost)
        return go_on(job, rank, size)


def come(say: Any, rank: int, size: int, store: str) -> int:
    with enter(rank, size, store, join=True) as job:
        return go_on(job, rank, size)


def go_on(job: tokenyard.Job, rank: int, size: int) -> int:
    everybody = list(range(size))
    assert job.active_ranks() == everybody
    world = world_of(job)
    exchange = exchange_on(world)
    for _ in range(3):
        check_exchange(exchange, world, everybody)
        check_sum(job.collectives().world(), rank, everybody)
    again = world_of(job)  # In the same epoch.
    again.barrier()
    epoch = job.epoch()  # The next one begins when the first rank leaves.
    world.barrier()
    return epoch


@pytest.mark.parametrize(("size", "lost"), [(2, 1), (4, 0), (4, 3)])
def test_replacement_takes_part_in_both(tmp_path: Path, size: int, lost: int) -> None:
    store = file_store(tmp_path)
    with ranks_of(stay_and_replace, size, store, lost) as ranks:
        for rank in ranks:
            rank.hears("working")
        ranks[lost].kill()
        newcomer = Rank(come, lost, size, store)
        try:
            epochs = results([*(rank for rank in ranks if rank.number != lost), newcomer])
            assert len(set(epochs)) == 1
        finally:
            newcomer.end()


def sleep_through(say: Any, rank: int, size: int, store: str) -> str:
    with enter(rank, size, store, silence=1.0) as job:
        world = world_of(job)
        exchange = exchange_on(world)
        everybody = job.collectives().world()
        check_exchange(exchange, world, list(range(size)))
        check_sum(everybody, rank, list(range(size)))
        say("met")
        if rank != 1:
            until_lost(lambda: everybody.all_reduce(np.zeros(10, np.float32)).wait())
            assert job.recover() == [other for other in range(size) if other != 1]
            say("gone on")
            everybody.barrier().wait()
            return "gone on"
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            try:
                everybody.all_reduce(np.zeros(10, np.float32)).wait()
            except tokenyard.Fenced:
                break
            except tokenyard.OperationAborted:
                job.recover()
        with pytest.raises((tokenyard.OutOfTouch, tokenyard.PeerLost)):
            exchange.dispatch(tokens_of(rank), experts_for(list(range(size)), rank))
        with pytest.raises(tokenyard.Fenced):
            job.world(arena_bytes=ARENA_BYTES, timeout=5)
        with (
            pytest.warns(DeprecationWarning, match="World.rebuild"),
            pytest.raises((tokenyard.OutOfTouch, tokenyard.QuorumLost)),
        ):
            world.rebuild([0, 2, 3])
        return "told"


def test_sleeper_is_told_that_the_others_have_gone_on(tmp_path: Path) -> None:
    with ranks_of(sleep_through, 4, file_store(tmp_path)) as ranks:
        for rank in ranks:
            rank.hears("met")
        ranks[1].stop()
        for rank in ranks:
            if rank.number != 1:
                rank.hears("gone on")
        ranks[1].wake()
        assert results(ranks) == ["gone on", "told", "gone on", "gone on"]


def share(say: Any, rank: int, size: int, port: int) -> list[int]:
    os.environ |= dict(RANK=str(rank), WORLD_SIZE=str(size), MASTER_PORT=str(port))
    os.environ["TOKENYARD_SECRET"] = "x" * 16
    world = tokenyard.World.from_env(arena_bytes=1 << 20, timeout=20)
    collectives = world.job.collectives()
    check_sum(collectives.world(), rank, list(range(size)))
    collectives.close()
    world.barrier()  # Closing a handle ends nothing.
    job = world.job
    world.close()
    next_world = job.world(arena_bytes=1 << 20)
    gathered = next_world.all_gather(bytes([rank]))
    compact = job.world(arena_bytes=1 << 20, compact=True)
    assert (compact.rank, compact.size) == (rank, size)
    compact.barrier()
    return [each[0] for each in gathered]


def test_a_world_has_a_job(tmp_path: Path) -> None:
    from tokenyard.world.rendezvous import HeldPort

    port = HeldPort()
    try:
        with ranks_of(share, 3, port.number) as ranks:
            assert results(ranks) == [[0, 1, 2]] * 3
    finally:
        port.release()


def count_parts(say: Any, rank: int, size: int, store: str) -> tuple[int, int, int]:
    """Returns the threads of a process with a job, then with collectives, and the arenas."""

    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    with enter(rank, size, store) as job:
        before = threads()
        job.collectives().world().barrier().wait()
        after = threads()
        maps = Path("/proc/self/maps").read_text()
        job.collectives().world().barrier().wait()
        return before, after, maps.count("tokenyard-arena")


def test_a_part_that_nobody_uses_costs_nothing(tmp_path: Path) -> None:
    with ranks_of(count_parts, 2, file_store(tmp_path)) as ranks:
        for before, after, arenas in results(ranks):
            assert after == before + 1, "the progress thread begins with the first operation"
            assert arenas == 0


def test_threads_have_no_job() -> None:
    def ask(world: tokenyard.World) -> str:
        with pytest.raises(tokenyard.Unsupported) as caught:
            _ = world.job
        return str(caught.value)

    assert all("threads" in text for text in tokenyard.launch(ask, ranks=2, arena_bytes=1 << 16))


def test_an_option_that_has_gone_is_refused_by_name() -> None:
    gone: dict[str, Any] = {"interconnect": "libtokenyard_ucx.so"}
    with pytest.raises(TypeError, match="interconnect"):
        tokenyard.connect("file:/nowhere", rank=0, size=1, **gone)
    with pytest.raises(TypeError, match="interconnect"):
        tokenyard.Collectives.connect("file:/nowhere", secret=SECRET, rank=0, size=1, **gone)
    torch = pytest.importorskip("tokenyard.torch")
    with pytest.raises(TypeError, match="interconnect"):
        torch.Options(**gone)
