"""launch(on_death=...): processes that die, and the reaction of the others."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import start_python

import tokenyard
from tokenyard.world.launched import Launched
from tokenyard.world.outcomes import Outcomes

VICTIM = 1
PATIENT_S = 600.0
"""Longer than any test: waits end by a death."""
IMPATIENT_S = 2.0


def meet_until_one_falls(world: tokenyard.World, blow: signal.Signals) -> int:
    """Returns the rank that is gone.

    The victim dies once all others have its message, which might be lost with it.
    """
    world.barrier("all are there")
    try:
        while True:
            world.barrier("for the victim, too")
            if world.rank == VICTIM:
                os.kill(os.getpid(), blow)
    except (tokenyard.PeerLost, tokenyard.PeerTimeout) as error:
        return error.rank


def go_on_without(world: tokenyard.World, blow: signal.Signals) -> tuple[int, int, int]:
    meet_until_one_falls(world, blow)
    world.job.recover()
    # A stopped rank may not be lost yet: the world is then made once it is.
    smaller = world.job.world(arena_bytes=1 << 20, timeout=30, compact=True)
    smaller.barrier("without it")
    assert (world.rank, world.size) == (smaller.rank if world.rank == 0 else 2, 3)
    return world.rank, smaller.rank, smaller.size


def await_whom_another_waited_for(world: tokenyard.World) -> int:
    """Stops the victim. Rank 2 waited for it, and rank 0 for rank 2; returns whom it blames."""
    pids = world.all_gather(b"%d" % os.getpid(), "processes")
    if world.rank == VICTIM:
        time.sleep(0.2)  # Until its message has been sent.
        os.kill(os.getpid(), signal.SIGSTOP)
    # Before it stops it would agree with the one that calls first.
    while "State:\tT" not in Path(f"/proc/{int(pids[VICTIM])}/status").read_text():
        time.sleep(0.01)
    return 2 if world.rank == 0 else VICTIM


def go_on_without_whom_another_waited_for(
    world: tokenyard.World, late: int, again: bool
) -> tuple[list[int], int]:
    """`late` calls last: once the other one's request has done its work.

    `again`: the first attempt fails, since no machine has memory for it.
    """
    pids = world.all_gather(b"%d" % os.getpid(), "who they are")
    blamed = [await_whom_another_waited_for(world)]
    time.sleep(1.0 if world.rank == late else 0.0)
    if again:
        with pytest.raises(tokenyard.Error):
            world._native.rebuild(blamed, arena_bytes=1 << 56)
    with pytest.warns(DeprecationWarning, match="World.rebuild"):
        smaller = world.rebuild(without=blamed)
    staying = smaller.all_gather(b"%d" % os.getpid(), "processes")
    return [rank for rank, pid in enumerate(pids) if pid not in staying], smaller.size


def go_on_with_another(world: tokenyard.World, blow: signal.Signals) -> tuple[int, bool, bytes]:
    if not world.is_replacement:
        world = world.replace([meet_until_one_falls(world, blow)])
        assert not world.is_replacement
        state = b"kept"
    else:
        state = b""
    states = world.all_gather(state, "state")
    # The job is the survivors' own: its collectives go on, too.
    all_of_them = np.ones(1, np.float32)
    world.job.collectives().world().all_reduce(all_of_them).wait()
    assert all_of_them[0] == world.size
    exchange = tokenyard.ExpertParallel(world, experts=3, hidden=8, topk=1, tokens_max=1)
    exchange.close()
    return world.rank, state == b"", b"".join(states)


def replace_at_the_second_attempt(world: tokenyard.World) -> bool:
    """The first attempt fails once the survivors have agreed on who is lost."""
    if not world.is_replacement:
        blamed = [await_whom_another_waited_for(world)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Launched, "tell", fail_to_start)
            with pytest.raises(tokenyard.Error, match="no process"):
                world.replace(blamed)
        world = world.replace(blamed)
    world.barrier("all are there again")
    return world.is_replacement


def fail_to_start(self: Launched, kind: str, value: Any) -> None:
    raise tokenyard.Error("no process can be started")


def replace_twice(world: tokenyard.World) -> tuple[int, int]:
    """Two deaths in succession; the second is that of a new rank."""
    lost = 0
    while True:
        known = b"" if world.is_replacement else b"%d" % lost
        lost = int(max(world.all_gather(known, "how many were lost")))
        if lost == 2:
            world.barrier("the end")
            return world.rank, world.size
        world = world.replace([meet_until_one_falls(world, signal.SIGKILL)])
        lost += 1


def fail_beside_a_death(world: tokenyard.World) -> None:
    meet_until_one_falls(world, signal.SIGKILL)
    if world.rank == 0:
        time.sleep(1)  # A process that dies closes its connections before its parent sees its end.
        raise KeyError("an ordinary exception")
    time.sleep(60)


def die(world: tokenyard.World) -> None:
    # The other rank may die before its I/O thread has sent its part of the barrier.
    with contextlib.suppress(tokenyard.PeerLost):
        world.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def replace_without_a_launch(world: tokenyard.World) -> None:
    with pytest.raises(tokenyard.Unsupported, match="on_death='replace'"):
        world.replace([1 - world.rank])
    world.barrier("it is as it was")


def test_survivors_of_a_killed_rank_continue() -> None:
    results = tokenyard.launch(
        go_on_without,
        ranks=3,
        processes=True,
        timeout=PATIENT_S,
        args=(signal.SIGKILL,),
        on_death="continue",
    )
    assert (results[0], results[2]) == ((0, 0, 2), (2, 1, 2))
    died = results[VICTIM]
    assert isinstance(died, tokenyard.ProcessDied)
    assert (died.rank, died.exit_code) == (VICTIM, -signal.SIGKILL)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("late", "again"),
    [(0, False), (2, False), (VICTIM, False), (VICTIM, True)],
    ids=["blamer", "blamed", "neither", "again"],
)
def test_a_rank_that_waits_for_a_lost_one_stays(late: int, again: bool) -> None:
    results = tokenyard.launch(
        go_on_without_whom_another_waited_for,
        ranks=3,
        processes=True,
        timeout=IMPATIENT_S,
        args=(late, again),
        on_death="continue",
    )
    assert results[0] == results[2] == ([VICTIM], 2)
    assert isinstance(results[VICTIM], tokenyard.ProcessDied)


def test_survivors_of_a_stopped_rank_continue_and_it_is_ended_after_them() -> None:
    results = tokenyard.launch(
        go_on_without,
        ranks=3,
        processes=True,
        timeout=IMPATIENT_S,
        args=(signal.SIGSTOP,),
        on_death="continue",
    )
    assert (results[0], results[2]) == ((0, 0, 2), (2, 1, 2))
    died = results[VICTIM]
    assert isinstance(died, tokenyard.ProcessDied)
    assert "had gone on without it" in died.__notes__[0]
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("blow", "timeout"), [(signal.SIGKILL, PATIENT_S), (signal.SIGSTOP, IMPATIENT_S)]
)
def test_a_new_process_takes_the_place(blow: signal.Signals, timeout: float) -> None:
    results = tokenyard.launch(
        go_on_with_another,
        ranks=3,
        processes=True,
        timeout=timeout,
        args=(blow,),
        on_death="replace",
    )
    assert results == [(rank, rank == VICTIM, b"keptkept") for rank in range(3)]
    assert not multiprocessing.active_children()


def test_another_attempt_to_replace_keeps_the_excuses() -> None:
    results = tokenyard.launch(
        replace_at_the_second_attempt,
        ranks=3,
        processes=True,
        timeout=IMPATIENT_S,
        on_death="replace",
    )
    assert results == [False, True, False]


def test_a_replacement_may_be_replaced() -> None:
    results = tokenyard.launch(
        replace_twice, ranks=2, processes=True, timeout=PATIENT_S, on_death="replace"
    )
    assert results == [(0, 2), (1, 2)]


def test_an_ordinary_exception_ends_the_others() -> None:
    with pytest.raises(KeyError, match="an ordinary exception") as caught:
        tokenyard.launch(
            fail_beside_a_death, ranks=3, processes=True, timeout=PATIENT_S, on_death="continue"
        )
    assert any("rank 1 had died" in note for note in caught.value.__notes__)


def test_a_failure_names_all_the_dead() -> None:
    outcomes = Outcomes(4)
    for rank in (3, 1):
        outcomes.died(rank, RuntimeError(f"the end of rank {rank}"))
    outcomes.raised(0, failure := KeyError("lost key"))
    with pytest.raises(KeyError):
        outcomes.results()
    assert failure.__notes__ == [
        "raised by rank 0 of 4",
        "rank 1 had died: the end of rank 1",
        "rank 3 had died: the end of rank 3",
    ]


def test_a_death_of_all_is_raised() -> None:
    with pytest.raises(tokenyard.ProcessDied, match="rank 0"):
        tokenyard.launch(die, ranks=2, processes=True, timeout=PATIENT_S, on_death="continue")


@pytest.mark.parametrize("processes", [False, True])
def test_only_a_launch_that_replaces_can(processes: bool) -> None:
    tokenyard.launch(replace_without_a_launch, ranks=2, processes=processes)


@pytest.mark.parametrize(
    ("on_death", "processes"), [("carry on", True), ("continue", False), ("replace", False)]
)
def test_wrong_arguments_are_named(on_death: str, processes: bool) -> None:
    chosen: dict[str, Any] = dict(processes=processes, on_death=on_death)
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        tokenyard.launch(die, ranks=2, **chosen)
    assert caught.value.argument == "on_death"


PROGRAM = """
import os, sys, time
import tokenyard

def wait(world):
    world.barrier()
    os.write(1, b"%d\\n" % os.getpid())  # In one piece: the ranks share a pipe.
    time.sleep(600)

if __name__ == "__main__":
    tokenyard.launch(wait, ranks=2, processes=True)
"""


def test_the_ranks_end_when_the_program_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    program = start_python(path, stderr=subprocess.DEVNULL)
    assert program.stdout is not None
    ranks = [int(program.stdout.readline()) for _ in range(2)]
    program.kill()
    program.wait()
    until = time.monotonic() + 20
    while any(is_alive(rank) for rank in ranks):
        assert time.monotonic() < until, "a rank outlives its program"
        time.sleep(0.02)


def is_alive(process: int) -> bool:
    try:
        return b"python" in Path(f"/proc/{process}/cmdline").read_bytes().lower()
    except OSError:
        return False
