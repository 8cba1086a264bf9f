"""Wrong or late collectives raise on every rank that can know."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from programs import start_python
from ranks import file_store, ranks_of, results_of
from test_collectives import connect

import tokenyard


@pytest.fixture
def alone(tmp_path: Path) -> Any:
    with connect(0, 1, file_store(tmp_path)) as job:
        yield job.world()


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda group: group.all_reduce([[1.0]]), "array"),
        (lambda group: group.all_reduce(np.zeros(3, "S3")), "array"),
        (lambda group: group.all_reduce(np.zeros(3, ">f4")), "array"),
        (lambda group: group.all_reduce(np.zeros(3, ml_dtypes.float8_e4m3fn)), "array"),
        (lambda group: group.all_reduce(np.zeros((4, 4))[:, 1]), "array"),
        (lambda group: group.all_reduce(np.broadcast_to(np.zeros(1), 3)), "array"),
        (lambda group: group.all_reduce(np.zeros(3), "maximum"), "op"),
        (lambda group: group.all_reduce(np.zeros(3), "bit_and"), "op"),
        (lambda group: group.all_reduce(np.zeros(3, np.complex64), "min"), "op"),
        (lambda group: group.all_reduce(np.zeros(3), timeout=-1), "timeout"),
        (lambda group: group.all_reduce(np.zeros(3), algorithm="magic"), "algorithm"),
        (lambda group: group.all_reduce(np.zeros(3), timeout="soon"), "timeout"),
        (lambda group: group.all_reduce(3), "array"),
        (lambda group: group.all_gather(np.zeros(3), None), "out"),
        (lambda group: group.send(np.zeros(3), 0, tag=-1), "tag"),
        (lambda group: group.broadcast(np.zeros(3), root=1), "root"),
        (lambda group: group.all_gather(np.zeros(3), np.zeros((2, 3))), "out"),
        (lambda group: group.all_gather(np.zeros(3), []), "out"),
        (lambda group: group.send(np.zeros(3), 1), "to"),
        (lambda group: group.send(np.zeros(3), 0), "to"),
        (lambda group: group.receive(np.zeros(3), 1), "source"),
    ],
)
def test_wrong_arguments_are_named(alone: tokenyard.Group, call: Any, argument: str) -> None:
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        call(alone).wait()
    assert caught.value.argument == argument


WITH_GAPS = np.zeros((3, 4))[:, 1]
IN_ANOTHER_ORDER = np.zeros((3, 4)).T
READ_ONLY = np.zeros(3)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize("wrong", [WITH_GAPS, IN_ANOTHER_ORDER], ids=["gaps", "order"])
@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda group, wrong: group.all_reduce([np.zeros(3), wrong]), "array"),
        (lambda group, wrong: group.all_gather(wrong.copy(), [wrong]), "out"),
        (lambda group, wrong: group.all_gather(wrong, [wrong.copy()]), "array"),
        (lambda group, wrong: group.gather(wrong.copy(), [wrong], root=0), "out"),
        (lambda group, wrong: group.scatter(wrong, [wrong.copy()], root=0), "out"),
        (lambda group, wrong: group.scatter(wrong.copy(), [wrong], root=0), "parts"),
        (lambda group, wrong: group.reduce_scatter([wrong], wrong.copy()), "parts"),
        (lambda group, wrong: group.reduce_scatter([wrong.copy()], wrong), "out"),
        (lambda group, wrong: group.all_to_all([wrong], [wrong.copy()]), "parts"),
        (lambda group, wrong: group.all_to_all([wrong.copy()], [wrong]), "out"),
    ],
)
def test_parts_that_would_have_to_be_copied_are_refused(
    alone: tokenyard.Group, call: Any, argument: str, wrong: np.ndarray
) -> None:
    with pytest.raises(tokenyard.InvalidArgument, match="C-contiguous") as caught:
        call(alone, wrong).wait()
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    "call",
    [
        lambda group: group.all_gather(np.zeros(3), [READ_ONLY]),
        lambda group: group.all_to_all([np.zeros(3)], [READ_ONLY]),
        lambda group: group.all_reduce([np.zeros(3), READ_ONLY]),
    ],
)
def test_parts_that_cannot_be_written_to_are_refused(alone: tokenyard.Group, call: Any) -> None:
    with pytest.raises(tokenyard.InvalidArgument, match="read-only"):
        call(alone).wait()


def test_rows_of_one_array_in_another_order_are_refused(alone: tokenyard.Group) -> None:
    with pytest.raises(tokenyard.InvalidArgument, match="C-contiguous") as caught:
        alone.all_gather(np.zeros(4), np.zeros((4, 2)).T[:1]).wait()
    assert caught.value.argument == "out"


def test_what_is_closed_stays_closed(tmp_path: Path) -> None:
    job = connect(0, 1, file_store(tmp_path))
    world = job.world()
    job.close()
    job.close()
    assert repr(job) == "Collectives(closed)"
    with pytest.raises(tokenyard.InvalidArgument, match="closed"):
        job.active_ranks()
    with pytest.raises(tokenyard.Error):
        world.barrier().wait()
    with pytest.raises(tokenyard.Cancelled):
        world.choice("all_reduce", 1 << 20)


def test_a_job_that_is_left_in_disorder_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(job: tokenyard.Collectives) -> None:
        raise TimeoutError("a message was not taken")

    monkeypatch.setattr(tokenyard.Collectives, "leave", leave)
    job = tokenyard.Collectives.connect(file_store(tmp_path), secret="s", rank=0, size=1)
    with pytest.raises(TimeoutError, match="not taken"), job:
        pass
    assert repr(job) == "Collectives(closed)"


@pytest.mark.parametrize("secret", ["", None])
def test_a_secret_that_everybody_knows(tmp_path: Path, secret: Any) -> None:
    with pytest.raises(tokenyard.InvalidArgument, match="secret"):
        tokenyard.Collectives.connect(file_store(tmp_path), secret=secret, rank=0, size=1)
    with pytest.raises(tokenyard.InvalidArgument, match="secret"):
        tokenyard.StoreServer(secret=secret)


def test_ranks_are_checked_before_anybody_is_waited_for(tmp_path: Path) -> None:
    for options in (dict(rank=2, size=2), dict(rank=0, size=0), dict(rank=0, size=2, size_max=1)):
        with pytest.raises(tokenyard.InvalidArgument):
            tokenyard.Collectives.connect(file_store(tmp_path), secret="s", **options)
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        connect(0, 1, file_store(tmp_path), on_failure="panic")
    assert caught.value.argument == "on_failure"


def connect_without_rank_1(say: Any, rank: int, size: int, store: str) -> tuple[int, str]:
    with pytest.raises(tokenyard.PeerTimeout) as caught:
        tokenyard.Collectives.connect(store, secret="s", rank=2 * rank, size=3, timeout=1.5)
    return caught.value.rank, str(caught.value)


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    named = results_of(connect_without_rank_1, 2, file_store(tmp_path))
    # A rank that gives up later may also miss the one that gave up first.
    assert 1 in [rank for rank, _ in named]
    for rank, sentence in named:
        assert f"rank {rank}" in sentence


AT_ODDS: dict[str, Any] = {
    "operation": lambda group, odd: (
        group.barrier() if odd else group.all_reduce(np.zeros(7, np.float32))
    ),
    "shape": lambda group, odd: group.all_reduce(np.zeros(8 if odd else 7, np.float32)),
    "type": lambda group, odd: group.all_reduce(np.zeros(7, np.int32 if odd else np.float32)),
    "reduction": lambda group, odd: group.all_reduce(np.zeros(7), "max" if odd else "min"),
    "root": lambda group, odd: group.broadcast(np.zeros(7), root=1 if odd else 0),
}


def at_odds(say: Any, rank: int, size: int, store: str, kind: str) -> str:
    """Rank 1 calls another operation than the others."""
    with connect(rank, size, store) as job:
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            AT_ODDS[kind](job.world(), rank == 1).wait()
        return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("operation", ("all_reduce", "barrier")),
        ("shape", ("7", "8")),
        ("type", ("float32", "int32")),
        ("reduction", ("min", "max")),
        ("root", ("broadcast", "0", "1")),
    ],
)
def test_ranks_at_odds_are_told_by_both_names(
    tmp_path: Path, kind: str, words: tuple[str, ...]
) -> None:
    for sentence in results_of(at_odds, 3, file_store(tmp_path), kind):
        for word in words:
            assert word in sentence, sentence


def too_short(say: Any, rank: int, size: int, store: str) -> str:
    with connect(rank, size, store) as job:
        world = job.world()
        if rank == 0:
            world.send(np.zeros(4), 1).wait()
            world.barrier().wait()
            return ""
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            world.receive(np.zeros(3), 0).wait()
        world.barrier().wait()
        return str(caught.value)


def test_a_message_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    _, sentence = results_of(too_short, 2, file_store(tmp_path))
    assert "3" in sentence
    assert "4" in sentence


def late(say: Any, rank: int, size: int, store: str) -> None:
    with connect(rank, size, store) as job:
        world = job.world()
        world.barrier().wait()
        if rank == 1:
            say("not yet")
            time.sleep(4)  # Its heartbeats continue; only its part of the operation is missing.
            with pytest.raises(tokenyard.Error):
                world.barrier().wait()
            return
        with pytest.raises(tokenyard.PeerTimeout) as caught:
            world.all_reduce(np.zeros(3), timeout=0.8).wait()
        assert caught.value.rank == 1
        assert "all_reduce" in str(caught.value)
        say("timed out")
        time.sleep(4)


def test_a_rank_that_lives_but_does_not_call_is_named(tmp_path: Path) -> None:
    with ranks_of(late, 3, file_store(tmp_path)) as ranks:
        for rank in (0, 2):
            ranks[rank].hears("timed out")
        ranks[1].hears("not yet")
        for rank in ranks:
            rank.result()


def two_missing(say: Any, rank: int, size: int, store: str) -> str:
    with connect(rank, size, store) as job:
        world = job.world()
        if rank in (1, 3):
            time.sleep(3)
            return ""
        with pytest.raises(tokenyard.Error) as caught:
            world.monitored_barrier(timeout=0.8).wait()
        time.sleep(2.2)
        return str(caught.value)


def test_a_monitored_barrier_names_all_who_did_not_come(tmp_path: Path) -> None:
    sentences = results_of(two_missing, 4, file_store(tmp_path))
    for rank in (0, 2):
        assert "1" in sentences[rank]
        assert "3" in sentences[rank]


def cancelled(say: Any, rank: int, size: int, store: str) -> None:
    with connect(rank, size, store) as job:
        if rank == 0:
            work = job.world().all_reduce(np.zeros(3))
            assert not work.wait_for(0.05)
            job.cancel()
            with pytest.raises(tokenyard.Cancelled):
                work.wait()
            assert isinstance(work.error(), tokenyard.Cancelled)
            say("cancelled")
            job.close()
        else:
            time.sleep(60)  # Until it is killed.


def test_cancel_ends_what_waits(tmp_path: Path) -> None:
    with ranks_of(cancelled, 2, file_store(tmp_path)) as ranks:
        ranks[0].hears("cancelled")
        ranks[0].result()


WAITS = """
import sys, numpy as np, tokenyard
job = tokenyard.Collectives.connect({store!r}, secret="s", rank=int(sys.argv[1]), size=2)
world = job.world()
world.barrier().wait()
if job.rank == 1:
    print("ready", flush=True)
    sys.stdin.read()
else:
    try:
        print("waiting", flush=True)
        world.all_reduce(np.zeros(3)).wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(3)
"""


def test_ctrl_c_ends_a_wait(tmp_path: Path) -> None:
    program = WAITS.format(store=file_store(tmp_path))
    both = [start_python("-c", program, str(rank), stdin=subprocess.PIPE) for rank in (0, 1)]
    try:
        assert both[0].stdout.readline() == "waiting\n"
        assert both[1].stdout.readline() == "ready\n"
        both[0].send_signal(signal.SIGINT)
        out, _ = both[0].communicate(timeout=20)
        assert out == "interrupted\n"
        assert both[0].returncode == 3
    finally:
        for process in both:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("fault", ["wrong secret", "another job"])
def test_a_stranger_is_turned_away(tmp_path: Path, fault: str) -> None:
    """The ranks that belong together find one another nevertheless."""
    store = file_store(tmp_path)
    with ranks_of(stays, 2, store) as ranks:
        for rank in ranks:
            rank.hears("together")
        options: dict[str, Any] = dict(secret="of the tests", rank=0, size=2, timeout=1.5)
        options |= dict(secret="guessed") if fault == "wrong secret" else dict(job="other")
        with pytest.raises(tokenyard.Error):
            tokenyard.Collectives.connect(store, **options)
        for rank in ranks:
            rank.result()


def stays(say: Any, rank: int, size: int, store: str) -> None:
    with connect(rank, size, store) as job:
        say("together")
        for _ in range(20):
            job.world().barrier().wait()
            time.sleep(0.1)
