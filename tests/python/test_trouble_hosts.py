"""Ranks, hosts and links fail in the midst of exchanges between hosts, over TCP between namespaces.

The survivors agree through the job, continue without the host, and leave nothing.
Data that a failed rank had under way are not taken later.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from holdings import Holdings
from hosts import Hosts, hosts_of_a_test
from ranks import Rank, file_store, ranks_of, results
from test_trouble import await_file, done_of, shared_files, what_is_left

import tokenyard
from tokenyard import NetworkOptions

SECRET = "of-the-tests-of-hosts"
SILENCE_S = 2.0
PATIENT_S = 60.0
"""Longer than any wait: news of a loss ends it."""
EXPERTS_PER_RANK, HIDDEN, TOPK, TOKENS = 3, 128, 2, 40
"""Tokens of a rank for another host are more than the slots of a ring, so credits are awaited."""
LOSSES = (tokenyard.PeerLost, tokenyard.PeerTimeout, tokenyard.OperationAborted)
GONE = (tokenyard.OutOfTouch, tokenyard.Fenced, tokenyard.QuorumLost)


class Exchanges:
    """Both exchanges of a world, with rows and sums that are known: each expert returns its row."""

    def __init__(self, job: tokenyard.Job, world: tokenyard.World) -> None:
        self.job, self.world = job, world
        self.sizes = dict(
            experts=EXPERTS_PER_RANK * world.size, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS
        )
        self.throughput = tokenyard.ExpertParallel(world, **self.sizes)
        self.step = 0

    @functools.cached_property
    def low_latency(self) -> tokenyard.LowLatency:
        """Is made where it is first used: a newcomer makes each where others use theirs."""
        return tokenyard.LowLatency(self.world, **self.sizes)

    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns new rows, which name the epoch, the step, the rank and the token, with experts on
        two ranks each and the sums that they come to."""
        self.step += 1
        # A rank that is no member any more, which its next call tells it, knows of none.
        members = self.job.active_ranks() or [self.world.rank]
        token = np.arange(TOKENS)
        owners = np.stack([np.take(members, token + at, mode="wrap") for at in range(TOPK)], axis=1)
        ids = owners * EXPERTS_PER_RANK + [0, 1]
        x = np.empty((TOKENS, HIDDEN), np.float32)
        x[:] = (1000 * self.world.rank + token)[:, None]
        x[:, 0], x[:, 1] = self.job.epoch(), self.step
        ranks_of_token = np.array([len(set(row)) for row in owners], np.float32)
        return x, ids, x * ranks_of_token[:, None]

    def dispatch(self) -> Any:
        x, ids, self.expected = self.rows()
        received = self.throughput.dispatch(x, ids)
        rows = np.asarray(received.x)
        assert (rows[:, 0] == self.job.epoch()).all(), "rows of another epoch"
        assert (rows[:, 1] == self.step).all(), "rows of another call"
        return received

    def combine(self, received: Any) -> None:
        home = self.throughput.combine(np.array(received.x), received)
        self.throughput.wait()
        np.testing.assert_array_equal(home, self.expected)

    def serve(self, of: list[int] | None = None) -> bool:
        """Returns whether none of the ranks, by default the members, is masked. Sums of others are
        right in any case."""
        _, ids, _ = self.rows()
        x = np.full((TOKENS, HIDDEN), self.step % 64 + self.world.rank, ml_dtypes.bfloat16)
        halves = np.full((TOKENS, TOPK), 0.5, np.float32)
        got = self.low_latency.dispatch(x, ids, rows="bf16", return_recv_hook=True)
        got.hook()
        home = self.low_latency.combine(got.x, got, halves, return_recv_hook=True)
        home.hook()
        self.low_latency.wait()
        kept = (TOPK - np.asarray(home.lost))[:, None]
        np.testing.assert_array_equal(np.asarray(home.x, np.float32), np.float32(x) * kept / TOPK)
        members = self.job.active_ranks() if of is None else of
        return not any(failed.rank in members for failed in self.low_latency.failed_ranks())

    def serve_until_masked(self, of: list[int] | None = None) -> None:
        while self.serve(of):
            pass

    def check(self) -> None:
        """Every member makes the same calls. One that follows a loss may say that it is undone."""
        try:
            received = self.dispatch()
        except tokenyard.OperationAborted:
            self.step -= 1  # It has done nothing, and not every rank is told so.
            received = self.dispatch()
        self.combine(received)
        assert self.serve()

    def repeat(self, phase: str) -> None:
        """Repeats a phase until a rank is gone."""
        # Those of before: the job may agree on a loss before low latency is asked.
        members = self.job.active_ranks()
        try:
            received = self.dispatch()
            while phase == "dispatch":
                self.dispatch()
            while phase == "combine":
                self.combine(received)
            self.serve_until_masked(members)
        except (tokenyard.PeerLost, tokenyard.PeerTimeout):
            pass

    def close(self) -> None:
        self.throughput.close()
        with contextlib.suppress(*LOSSES):  # It waits for all ranks.
            self.low_latency.close()


def enter(rank: int, hosts: Hosts, store: str, **options: Any) -> tokenyard.Job:
    place = hosts.enter(rank)
    return tokenyard.connect(
        store,
        secret=SECRET,
        rank=rank,
        size=hosts.size,
        timeout=PATIENT_S,
        silence=SILENCE_S,
        **place,
        **options,
    )


def world_of(job: tokenyard.Job, timeout: float, hasty: bool = False) -> tokenyard.World:
    """`hasty`: the network takes a silent peer for gone before the job does."""
    network = NetworkOptions(timeout=0.8 if hasty else None)
    return job.world(arena_bytes=1 << 24, timeout=timeout, network=network)


def work(
    say: Callable[[Any], None],
    rank: int,
    size: int,
    hosts: Hosts,
    store: str,
    phase: str,
    hasty: bool,
    survivors: list[int],
) -> Any:
    """Exchanges until ranks are gone, and goes on with the same objects among the survivors."""
    before = Holdings.now()
    job = enter(rank, hosts, store)
    exchanges = Exchanges(job, world_of(job, PATIENT_S, hasty))
    exchanges.check()
    say("at work")
    try:
        exchanges.repeat(phase)
        members = go_on(job, exchanges, survivors)
        say("went on")
        await_file(done_of(store))
    except GONE:
        with pytest.raises(GONE):
            job.recover()
        job.close()
        return "out of touch"
    epoch = job.epoch()
    for _ in range(3):  # Puts of the old epoch may arrive now.
        exchanges.check()
    exchanges.world.barrier("all have exchanged")
    exchanges.close()
    job.close()
    del exchanges, job
    return epoch, members, what_is_left(before)


def go_on(job: tokenyard.Job, exchanges: Exchanges, survivors: list[int]) -> list[int]:
    deadline = time.monotonic() + PATIENT_S
    while True:
        assert time.monotonic() < deadline, job.active_ranks()
        try:
            if job.recover() == survivors:
                exchanges.step = 1000 * job.epoch()  # Alike: one may have ended a step more.
                exchanges.check()
                exchanges.world.barrier("all have gone on")
                return job.active_ranks()
            time.sleep(0.05)
        except LOSSES:
            continue


def expect(outcomes: list[Any], survivors: list[int]) -> None:
    epochs, members, left = zip(*outcomes, strict=True)
    assert set(map(tuple, members)) == {tuple(survivors)}
    assert len(set(epochs)) == 1
    assert set(left) == {""}


def blow_falls(
    tmp_path: Path,
    hosts: Hosts,
    lost: list[int],
    phase: str,
    blow: Callable[[list[Rank]], Any],
    *,
    recovered: Callable[[list[Rank]], None] = lambda ranks: None,
    hasty: bool = False,
) -> None:
    """`blow` makes the ranks `lost` be gone while all repeat the phase. `recovered` is called once
    the others have gone on; ranks that live then learn that they are out."""
    before = shared_files()
    store = file_store(tmp_path)
    survivors = [rank for rank in range(hosts.size) if rank not in lost]
    arguments = (hosts, store, phase, hasty, survivors)
    with ranks_of(work, hosts.size, *arguments) as ranks:
        for rank in ranks:
            rank.hears("at work")
        blow(ranks)
        for rank in survivors:
            ranks[rank].hears("went on")
        recovered(ranks)
        Path(done_of(store)).touch()
        expect(results([ranks[rank] for rank in survivors]), survivors)
    assert shared_files() <= before


@pytest.mark.parametrize("phase", ["dispatch", "combine", "serve"])
def test_a_killed_rank(phase: str, tmp_path: Path) -> None:
    """It sends, forwards for its rail peer, and receives."""
    with hosts_of_a_test(2, 2) as hosts:
        blow_falls(tmp_path, hosts, [3], phase, lambda ranks: ranks[3].kill())


@pytest.mark.parametrize("phase", ["combine"])
def test_a_stopped_rank(phase: str, tmp_path: Path) -> None:
    def wakes(ranks: list[Rank]) -> None:
        ranks[3].wake()
        assert ranks[3].result() == "out of touch"

    with hosts_of_a_test(2, 2) as hosts:
        blow_falls(tmp_path, hosts, [3], phase, lambda ranks: ranks[3].stop(), recovered=wakes)


@pytest.mark.parametrize("phase", ["dispatch", "serve"])
def test_a_whole_host_is_killed(phase: str, tmp_path: Path) -> None:
    with hosts_of_a_test(3, 2) as hosts:
        blow_falls(
            tmp_path, hosts, [2, 3], phase, lambda ranks: [ranks[rank].kill() for rank in (2, 3)]
        )


@pytest.mark.parametrize("phase", ["dispatch", "combine", "serve"])
def test_a_host_is_cut_off(phase: str, tmp_path: Path) -> None:
    """The network notices before the job does, and no rank takes that for the network's fault."""
    with hosts_of_a_test(3, 1) as hosts:
        blow_falls(tmp_path, hosts, [1], phase, lambda ranks: hosts.take_down(1), hasty=True)


@pytest.mark.parametrize(("phase", "slow"), [("dispatch", 1), ("combine", 2), ("serve", 1)])
def test_a_killed_rank_with_a_slow_rail(phase: str, slow: int, tmp_path: Path) -> None:
    """One host sends slowly: a survivor's, whose last requests are under way for long, or that of
    the rank that is killed, whose last ones arrive behind the news."""

    def kill(ranks: list[Rank]) -> None:
        hosts.slow_down(slow, 2.0)
        time.sleep(1)  # Its queues fill.
        ranks[2].kill()

    with hosts_of_a_test(3, 1) as hosts:
        blow_falls(tmp_path, hosts, [2], phase, kill)


def late_puts_come(tmp_path: Path, hosts: Hosts, phase: str) -> None:
    """Drops packets of host 1 until the others have gone on; then its system sends them again, to
    ranks that exchange in the new epoch."""

    def heals(ranks: list[Rank]) -> None:
        hosts.heal(1)
        assert ranks[1].result() == "out of touch"

    def cut(ranks: list[Rank]) -> None:
        for host in (0, 2):
            hosts.cut(1, host)

    blow_falls(tmp_path, hosts, [1], phase, cut, recovered=heals)


@pytest.mark.parametrize("phase", ["dispatch", "serve"])
def test_late_puts_of_an_old_epoch(phase: str, tmp_path: Path) -> None:
    with hosts_of_a_test(3, 1) as hosts:
        late_puts_come(tmp_path, hosts, phase)
