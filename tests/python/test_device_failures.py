"""Collectives on device tensors after a failure: survivors agree on the last call all finished."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import Rank, file_store, ranks_of, results, results_of
from test_job import enter

import tokenyard

SIZE, LOST = 3, 1
LEFT = [0, 2]


def world_of(job: tokenyard.Job, timeout: float = 20) -> tokenyard.World:
    return job.world(arena_bytes=96 << 20, timeout=timeout)


def member_sum(ranks: list[int]) -> float:
    return float(sum(rank + 1 for rank in ranks))


def call_until_lost(collectives: tokenyard.DeviceCollectives, say: Any) -> None:
    """Sums for ever; the program is told of a loss by any of its calls."""
    for number in range(1_000_000):
        x = np.full(700, collectives.world.rank + 1.0, np.float32)
        collectives.all_reduce(x)
        if number == 20:
            say("calling")


def checked(collectives: tokenyard.DeviceCollectives, call: Any) -> None:
    """Makes a call on the host's device, which has ended when it returns."""
    call()
    collectives.check()


def lost_of(call: Any) -> list[int]:
    with pytest.raises((tokenyard.PeerLost, tokenyard.PeerTimeout)) as caught:
        call()
    return [caught.value.rank]


def recovered(job: tokenyard.Job, members: list[int]) -> None:
    deadline = time.monotonic() + 60
    while job.recover() != members:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def agree(say: Any, rank: int, size: int, store: str) -> tuple[int, int]:
    """Returns the number of the last call before the loss, and that on which survivors agree."""
    with enter(rank, size, store) as job:
        collectives = tokenyard.DeviceCollectives(world_of(job))
        assert lost_of(lambda: call_until_lost(collectives, say)) == [LOST]
        made = collectives.calls
        recovered(job, LEFT)
        agreed = collectives.go_on()
        assert agreed == collectives.calls
        # The program goes on among the survivors; the empty slot's part is zero.
        x = np.full(9, rank + 1.0, np.float32)
        collectives.all_reduce(x)
        assert (x == member_sum(LEFT)).all()
        parts = np.full(size, -1, np.int32)
        collectives.all_gather(np.array([rank], np.int32), parts)
        assert parts.tolist() == [0, 0, 2]
        collectives.all_reduce(x, "average", timeout=20)
        assert collectives.calls == agreed + 3
        with pytest.raises(tokenyard.OperationAborted) as caught:
            collectives.broadcast(x, root=LOST)
        assert caught.value.lost == [LOST]
        collectives.close()
        return made, agreed


@pytest.mark.parametrize("turn", range(3))
def test_survivors_of_a_kill_agree_on_the_last_call(tmp_path: Path, turn: int) -> None:
    with ranks_of(agree, SIZE, file_store(tmp_path)) as ranks:
        for rank in ranks:
            rank.hears("calling")
        time.sleep(0.01 * turn)  # The place of the death is any.
        ranks[LOST].kill()
        seen = results([ranks[0], ranks[2]])
    assert seen[0][1] == seen[1][1] > 20
    for made, agreed in seen:
        assert agreed in (made - 2, made - 1, made)


def finish_one_more(
    say: Any, rank: int, size: int, store: str
) -> tuple[int, list[tuple[str, int, list[int]]]]:
    """Ranks 0 and 1 finish the sixth call; rank 2, its root, does not wait for their parts."""
    with enter(rank, size, store, silence=2) as job:
        world = world_of(job)
        collectives = tokenyard.DeviceCollectives(world)
        x = np.full(70, rank + 1.0, np.float32)
        for _ in range(5):
            collectives.all_reduce(x)
        if rank == 2:
            with pytest.raises(tokenyard.PeerTimeout):
                checked(collectives, lambda: collectives.reduce(x, root=2, timeout=1e-3))
            world.barrier()
        else:
            world.barrier()
            collectives.reduce(x, root=2)
            collectives.check()
        assert collectives.calls == 6
        say("called")
        if rank == LOST:
            time.sleep(600)
        recovered(job, LEFT)
        aborted = []
        try:
            collectives.barrier()
        except tokenyard.OperationAborted as error:
            aborted.append((error.operation.split(",")[0], error.sequence, error.lost))
            assert collectives.calls == 5
            collectives.barrier()
        assert collectives.calls == 6
        collectives.check()
        return collectives.go_on(), aborted


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_call_that_one_survivor_has_not_finished_is_aborted_on_the_others(
    tmp_path: Path, how: str
) -> None:
    with ranks_of(finish_one_more, SIZE, file_store(tmp_path)) as ranks:
        for rank in ranks:
            rank.hears("called")
        getattr(ranks[LOST], how)()
        seen = results([ranks[0], ranks[2]])
    assert seen == [(6, [("DeviceCollectives.reduce", 6, [LOST])]), (6, [])]


def fail_alone(say: Any, rank: int, size: int, store: str) -> tuple[int, float]:
    """Rank 2 alone knows that a call has failed; the recovery changes no member."""
    with enter(rank, size, store) as job:
        world = world_of(job)
        collectives = tokenyard.DeviceCollectives(world)
        x = np.full(70, rank + 1.0, np.float32)
        for _ in range(5):
            collectives.all_reduce(x)
        if rank == 2:
            with pytest.raises(tokenyard.PeerTimeout):
                checked(collectives, lambda: collectives.reduce(x, root=2, timeout=1e-3))
        world.barrier()
        if rank != 2:
            checked(collectives, lambda: collectives.reduce(x, root=2))
        job.recover()
        agreed = collectives.go_on()
        y = np.full(3, rank + 1.0, np.float32)
        collectives.all_reduce(y)
        collectives.close()
        return agreed, float(y[0])


def test_ranks_that_know_of_no_failure_go_on_with_those_that_do(tmp_path: Path) -> None:
    assert results_of(fail_alone, SIZE, file_store(tmp_path)) == [(5, member_sum([0, 1, 2]))] * SIZE


def differ(say: Any, rank: int, size: int, store: str) -> int:
    """Makes five calls, then one that differs: all ranks refuse it."""
    with enter(rank, size, store) as job:
        collectives = tokenyard.DeviceCollectives(world_of(job))
        for _ in range(5):
            collectives.all_reduce(np.ones(70, np.float32))
        wrong = np.ones(4 + (rank == LOST), np.float32)
        with pytest.raises(tokenyard.InvalidArgument, match="size"):
            checked(collectives, lambda: collectives.all_reduce(wrong))
        job.recover()
        agreed = collectives.go_on()
        collectives.all_reduce(np.ones(4, np.float32))
        collectives.close()
        return agreed


def test_a_call_that_differs_is_the_first_that_counts_as_failed(tmp_path: Path) -> None:
    assert results_of(differ, SIZE, file_store(tmp_path)) == [5] * SIZE


def keep(say: Any, rank: int, size: int, store: str, keeps: bool) -> list[float]:
    """Returns what an array in place holds after its call has failed."""
    with enter(rank, size, store) as job:
        collectives = tokenyard.DeviceCollectives(
            world_of(job), keep_inputs=keeps, slot_bytes=64, packet_bytes=64
        )
        x = np.full(900, rank + 1.0, np.float32)
        collectives.all_reduce(x)
        say("called")
        if rank == LOST:
            time.sleep(600)
        x[:] = rank + 1.0
        # Rank 0 folds its first slots with those of rank 2 before it waits for rank 1.
        assert lost_of(lambda: checked(collectives, lambda: collectives.all_reduce(x))) == [LOST]
        return [float(x.min()), float(x.max())]


def test_an_array_in_place_holds_its_input_after_a_failure(tmp_path: Path) -> None:
    with ranks_of(keep, SIZE, file_store(tmp_path), True) as ranks:
        for rank in ranks:
            rank.hears("called")
        ranks[LOST].kill()
        assert results([ranks[0], ranks[2]]) == [[1.0, 1.0], [3.0, 3.0]]


BEFORE_THE_LOSS, CALLS = 51, 120
"""Few: on a busy machine a call of three processes takes a few of its time slices."""


def again(say: Any, rank: int, size: int, store: str, on_failure: str, join: bool) -> list[float]:
    with enter(rank, size, store, on_failure=on_failure, join=join) as job:
        collectives = tokenyard.DeviceCollectives(
            world_of(job), keep_inputs=True, on_failure=on_failure
        )
        sums = set()
        number = collectives.calls
        while number < CALLS:
            x = np.full(300, rank + 1.0, np.float32)
            try:
                collectives.all_reduce(x)
            except tokenyard.OperationAborted:
                number = collectives.calls
                continue
            number = collectives.calls
            sums.add(float(x.max()))
            assert (x == x[0]).all()
            if number == BEFORE_THE_LOSS - 1:
                say("calling")
            if number == BEFORE_THE_LOSS and rank == LOST and not join:
                time.sleep(600)
        collectives.close()
        return sorted(sums)


def test_exclude_makes_the_call_again_among_the_survivors(tmp_path: Path) -> None:
    with ranks_of(again, SIZE, file_store(tmp_path), "exclude", False) as ranks:
        for rank in ranks:
            rank.hears("calling")
        ranks[LOST].kill()
        assert results([ranks[0], ranks[2]]) == [[4.0, 6.0]] * 2


def test_retry_waits_for_a_replacement_and_makes_the_call_again(tmp_path: Path) -> None:
    store = file_store(tmp_path)
    with ranks_of(again, SIZE, store, "retry", False) as ranks:
        for rank in ranks:
            rank.hears("calling")
        ranks[LOST].kill()
        new = Rank(again, LOST, SIZE, store, "retry", True)
        try:
            assert results([ranks[0], new, ranks[2]]) == [[6.0]] * 3
        finally:
            new.end()


def test_on_failure_needs_kept_inputs_and_the_jobs_own(tmp_path: Path) -> None:
    def body(world: tokenyard.World) -> list[str]:
        named = []
        for options in (
            dict(on_failure="retry"),
            dict(on_failure="exclude", keep_inputs=True),
            dict(on_failure="never"),
            dict(keep_inputs=True, arena_tensors=True),
        ):
            with pytest.raises(tokenyard.InvalidArgument) as caught:
                tokenyard.DeviceCollectives(world, **options)
            named.append(caught.value.argument)
        return named

    assert tokenyard.launch(body, ranks=1) == [
        ["keep_inputs", "on_failure", "on_failure", "arena_tensors"]
    ]
