"""Processes die or stop in the midst of everything; the survivors agree, continue, leave nothing.

Every rank exchanges tokens, and reduces in another thread at the same time. A blow falls at some
moment of a phase that all repeat.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from holdings import Holdings
from ranks import Rank, file_store, ranks_of

import tokenyard

RANKS = 4
PATIENT_S = 60.0
"""Longer than any wait: a death ends it."""
IMPATIENT_S = 3.0
SECRET = "of-the-tests-of-trouble"
EXPERTS, HIDDEN, TOPK, TOKENS = 12, 128, 2, 8
SIZES = dict(experts=EXPERTS, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS)
LOSSES = (tokenyard.PeerLost, tokenyard.PeerTimeout, tokenyard.OperationAborted)


class Ranks:
    """A job, and its world since the last recovery."""

    def __init__(self, rank: int, size: int, store: str, timeout: float) -> None:
        self.timeout = timeout
        self.job = tokenyard.connect(
            store, secret=SECRET, rank=rank, size=size, timeout=timeout, silence=2.0
        )
        self.world = self.make_world()

    def make_world(self) -> tokenyard.World:
        return self.job.world(arena_bytes=1 << 24, timeout=self.timeout)

    def recover(self) -> list[int]:
        """Returns the members that go on."""
        self.job.recover()
        self.world = self.make_world()  # Of fewer ranks, if more were lost meanwhile.
        return self.job.active_ranks()


class Tokens:
    """Dispatches and combines whose results are known, among the members of a job."""

    def __init__(self, world: tokenyard.World, members: list[int]) -> None:
        self.world = world
        self.exchange = tokenyard.ExpertParallel(world, **SIZES)
        self.low_latency = tokenyard.LowLatency(world, **SIZES)
        there = np.arange(TOKENS)
        owners = np.stack([np.take(members, there + at, mode="wrap") for at in range(TOPK)], axis=1)
        self.ids = owners * (EXPERTS // RANKS) + [0, 1]
        self.x = np.full((TOKENS, HIDDEN), world.rank + 1, ml_dtypes.bfloat16)
        self.weights = np.full((TOKENS, TOPK), 0.5, np.float32)

    def dispatch(self) -> Any:
        return self.exchange.dispatch(self.x, self.ids)

    def combine(self, received: Any) -> bool:
        y = self.exchange.combine(received.x, received)
        return bool((np.asarray(y, np.float32) == TOPK * (self.world.rank + 1)).all())

    def with_hooks(self) -> None:
        got = self.low_latency.dispatch(self.x, self.ids, rows="bf16", return_recv_hook=True)
        got.hook()
        home = self.low_latency.combine(got.x, got, self.weights, return_recv_hook=True)
        home.hook()

    def close(self) -> None:
        self.exchange.close()
        with contextlib.suppress(*LOSSES):  # It waits for all ranks.
            self.low_latency.close()


def repeat(phase: str, tokens: Tokens) -> None:
    """Repeats a phase until a rank is gone."""
    try:
        if phase == "dispatch":
            while True:
                tokens.dispatch()
        if phase == "combine":
            received = tokens.dispatch()
            while True:
                tokens.combine(received)
        while not tokens.low_latency.failed_ranks():
            tokens.with_hooks()
    except (tokenyard.PeerLost, tokenyard.PeerTimeout):
        pass


def reduce_until_it_fails(job: tokenyard.Job, failures: list[BaseException]) -> None:
    try:
        while True:
            job.collectives().world().all_reduce(np.ones(1000)).wait()
    except BaseException as error:
        failures.append(error)


def survive(
    say: Callable[[Any], None],
    rank: int,
    size: int,
    store: str,
    phase: str,
    falls: dict[int, str],
    blow: signal.Signals,
    timeout: float,
) -> Any:
    """`falls`: rank and when it falls: in the "phase" or in "recovery"."""
    before = Holdings.now()
    ranks = Ranks(rank, size, store, timeout)
    tokens = Tokens(ranks.world, list(range(size)))
    failures: list[BaseException] = []
    reducing = threading.Thread(target=reduce_until_it_fails, args=(ranks.job, failures))
    assert tokens.combine(tokens.dispatch())
    reducing.start()
    say("at work")
    if falls.get(rank) == "phase":
        fall_soon(blow, 0.2)
    try:
        repeat(phase, tokens)
        if falls.get(rank) == "phase" and blow == signal.SIGKILL:
            time.sleep(PATIENT_S)  # Another was killed before, and this one goes on with nobody.
        at = time.monotonic()
        reducing.join()
        tokens.close()
        if falls.get(rank) == "recovery":
            fall_soon(blow, 0.0)
        epoch, members, times = go_on(ranks, at, falls.get(rank) == "recovery")
        say("went on")
        await_file(done_of(store))
    except (tokenyard.OutOfTouch, tokenyard.Fenced, tokenyard.QuorumLost):
        # This rank was stopped, and the others have gone on.
        reducing.join()
        with pytest.raises(tokenyard.Fenced):
            ranks.job.recover()
        ranks.job.close()
        return "out of touch"
    ranks.job.close()
    names = [type(error).__name__ for error in failures]
    failures.clear()
    del tokens, ranks, reducing
    return epoch, members, names, times, what_is_left(before)


def done_of(store: str) -> str:
    """Returns the file by which a test tells its ranks that all of them have gone on."""
    if store.startswith("file:"):
        return f"{store.removeprefix('file:')}-done"
    return f"{tempfile.gettempdir()}/tokenyard-{store.removeprefix('tcp://')}-done"


def await_file(path: str) -> None:
    deadline = time.monotonic() + PATIENT_S
    while not Path(path).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def fall_soon(blow: signal.Signals, seconds: float) -> None:
    def fall() -> None:
        time.sleep(seconds + random.random() / 20)
        os.kill(os.getpid(), blow)

    threading.Thread(target=fall, daemon=True).start()


def go_on(ranks: Ranks, at: float, falls: bool) -> tuple[int, list[int], dict[str, float]]:
    """Recovers; further ranks may be lost meanwhile, and one that `falls` only waits for that."""
    deadline = time.monotonic() + PATIENT_S
    while True:
        try:
            members = ranks.recover()
            if falls:
                time.sleep(PATIENT_S)
            times = times_of_first_calls(ranks, members, at)
            epoch = ranks.job.epoch()
            ranks.world.barrier("all have measured")
            return epoch, members, times
        except LOSSES:
            assert time.monotonic() < deadline


def times_of_first_calls(ranks: Ranks, members: list[int], since: float) -> dict[str, float]:
    """Returns the seconds until each first call of the survivors was right."""
    times: dict[str, float] = {}
    tokens = Tokens(ranks.world, members)
    received = tokens.dispatch()
    times["dispatch"] = time.monotonic() - since
    assert tokens.combine(received)
    times["combine"] = time.monotonic() - since
    tokens.with_hooks()
    times["low latency"] = time.monotonic() - since
    ones = np.ones(1000)
    ranks.job.collectives().world().all_reduce(ones).wait()
    assert (ones == len(members)).all()
    times["all_reduce"] = time.monotonic() - since
    tokens.close()
    return times


def what_is_left(before: Holdings) -> str:
    """Returns what this process still holds of the job; nothing, soon after it was closed."""
    deadline = time.monotonic() + 20
    while True:
        now = Holdings.now()
        maps = Path("/proc/self/maps").read_text().splitlines()
        shared = [line for line in maps if "/memfd:tokenyard" in line]
        if now.descriptors <= before.descriptors and now.threads <= before.threads and not shared:
            return ""
        if time.monotonic() > deadline:
            return f"{before} before, {now} after, which maps {shared}"
        time.sleep(0.05)


def shared_files() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir() if "tokenyard" in path.name}


TROUBLE = [
    ("dispatch", {1: "phase"}, signal.SIGKILL),
    ("combine", {2: "phase"}, signal.SIGKILL),
    ("hooks", {1: "phase"}, signal.SIGKILL),
    ("dispatch", {0: "phase"}, signal.SIGKILL),
    ("combine", {1: "phase", 3: "phase"}, signal.SIGKILL),
    ("dispatch", {3: "phase", 0: "recovery"}, signal.SIGKILL),
    ("dispatch", {1: "phase"}, signal.SIGSTOP),
    ("combine", {3: "phase"}, signal.SIGSTOP),
    ("hooks", {2: "phase"}, signal.SIGSTOP),
]


def name_of(case: tuple[str, dict[int, str], signal.Signals]) -> str:
    phase, falls, blow = case
    ranks = "-".join(f"{rank}{'r' if when == 'recovery' else ''}" for rank, when in falls.items())
    return f"{phase}-{blow.name}-{ranks}"


@pytest.mark.parametrize("case", TROUBLE, ids=map(name_of, TROUBLE))
def test_survivors_agree_and_go_on(
    case: tuple[str, dict[int, str], signal.Signals], tmp_path: Path, capfd: Any
) -> None:
    phase, falls, blow = case
    before = shared_files()
    timeout = IMPATIENT_S if blow == signal.SIGSTOP else PATIENT_S
    store = file_store(tmp_path)
    arguments = (store, phase, falls, blow, timeout)
    with ranks_of(survive, RANKS, *arguments) as ranks:
        for rank in ranks:
            rank.hears("at work")
        survivors = [rank for number, rank in enumerate(ranks) if number not in falls]
        for rank in survivors:
            rank.hears("went on")
        for number in falls:
            assert_it_knows(ranks[number], blow)
        Path(done_of(store)).touch()
        outcomes = [rank.result() for rank in survivors]
    epochs, members, failures, times, left = zip(*outcomes, strict=True)
    assert set(map(tuple, members)) == {tuple(n for n in range(RANKS) if n not in falls)}
    assert len(set(epochs)) == 1
    assert set(itertools.chain(*failures)) == {"OperationAborted"}
    assert set(left) == {""}
    assert shared_files() <= before
    with capfd.disabled():
        slowest = {call: max(one[call] for one in times) for call in times[0]}
        shown = ", ".join(f"{call} {1e3 * seconds:.0f}" for call, seconds in slowest.items())
        print(f"\n{name_of(case)}: ms until the first good {shown}")


def assert_it_knows(fallen: Rank, blow: signal.Signals) -> None:
    """A killed rank is gone; a stopped one learns that the others have gone on."""
    if blow == signal.SIGKILL:
        assert fallen.outcome() == (False, f"died: {-signal.SIGKILL}")
        return
    fallen.wake()
    assert fallen.result() == "out of touch"
