"""launch: results, failures and endings, on threads and in processes."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from programs import run_python

import tokenyard
from tokenyard.world.outcomes import Outcomes
from tokenyard.world.processes import _pipe

# Functions for processes must be found by name in an importable module: this one.


def describe(world: tokenyard.World, greeting: str) -> tuple[str, int, int]:
    world.barrier()
    return greeting, world.rank, os.getpid()


def fail_on_rank_1(world: tokenyard.World) -> None:
    if world.rank == 1:
        raise KeyError("lost key")
    world.barrier("for a rank that has failed")


class Stubborn(Exception):
    """Cannot be unpickled: its constructor requires two arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def fail_stubbornly(world: tokenyard.World) -> None:
    raise Stubborn("one", "two")


def die_on_rank_1(world: tokenyard.World) -> None:
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


LARGE_BYTES = 256 << 20
"""Takes a while to be sent."""


def die_while_sending_on_rank_1(world: tokenyard.World) -> bytes:
    if world.rank == 0:
        time.sleep(60)

    def kill_in_the_midst() -> None:
        main = threading.main_thread().ident
        while True:
            frame = sys._current_frames().get(main)
            while frame is not None and frame.f_code.co_name != "_send":
                frame = frame.f_back
            if frame is not None and len(frame.f_locals["buf"]) > LARGE_BYTES:
                time.sleep(0.005)  # For the first bytes to be read.
                os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill_in_the_midst, daemon=True).start()
    return bytes(LARGE_BYTES)


def sleep_on_rank_0(world: tokenyard.World) -> None:
    if world.rank == 0:
        time.sleep(60)
    raise ValueError("at once")


def refuse_wrong_x(world: tokenyard.World) -> None:
    tokenyard.ExpertParallel(world, experts=world.size, hidden=7, topk=1, tokens_max=4)


def exit_on_rank_1(world: tokenyard.World) -> None:
    if world.rank == 1:
        sys.exit("that is enough")
    world.barrier("for a rank that has left")


def return_the_world(world: tokenyard.World) -> tokenyard.World:
    return world


def lost_ranks(world: tokenyard.World) -> list[int]:
    try:
        job = world.job
    except tokenyard.Unsupported:  # Its ranks are threads.
        return world.lost()
    return sorted(set(range(world.size)) - set(job.active_ranks()))


def wait_for_rank_1_that_returns(world: tokenyard.World) -> float:
    exchange = tokenyard.ExpertParallel(world, experts=2, hidden=64, topk=1, tokens_max=1)
    if world.rank == 1:
        return 0
    begin = time.monotonic()
    with pytest.raises(tokenyard.PeerLost, match=r"rank 1 .*it left the world") as caught:
        world.barrier("for a rank that has left")
    assert caught.value.rank == 1
    # It closes its world first, and leaves the job a moment later.
    while time.monotonic() - begin < 20 and not lost_ranks(world):
        time.sleep(0.01)
    assert lost_ranks(world) == [1]
    x = np.ones((1, 64), ml_dtypes.bfloat16)
    with pytest.raises(tokenyard.PeerLost, match=r"rank 1 .*it left the world"):
        exchange.dispatch(x, np.array([[1]]), np.ones((1, 1), np.float32))
    return time.monotonic() - begin


def leave_late_on_rank_1(world: tokenyard.World) -> None:
    if world.rank == 1:
        atexit.register(time.sleep, 60)
        return
    time.sleep(1)  # While rank 1 leaves its interpreter.
    raise ValueError("in a hurry")


def count_in_a_pool(world: tokenyard.World) -> list[int]:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.map(abs, [-1, 2])


BOTH = pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])


@BOTH
def test_results_by_rank(processes: bool) -> None:
    results = tokenyard.launch(describe, ranks=3, processes=processes, args=("hello",))
    assert [(greeting, rank) for greeting, rank, _ in results] == [("hello", r) for r in range(3)]
    pids = {pid for _, _, pid in results}
    assert (len(pids) == 3 and os.getpid() not in pids) if processes else pids == {os.getpid()}


@BOTH
def test_the_first_failure_comes_home_and_names_its_rank(processes: bool) -> None:
    with pytest.raises(KeyError, match="lost key") as caught:
        tokenyard.launch(fail_on_rank_1, ranks=3, processes=processes)
    assert "raised by rank 1 of 3" in caught.value.__notes__
    assert not multiprocessing.active_children()


def test_a_failure_names_all_that_had_died_before() -> None:
    outcomes = Outcomes(4)
    for rank in (2, 1):
        outcomes.died(rank, RuntimeError(f"signal {rank}"))
    outcomes.raised(0, ValueError("no"))
    assert isinstance(outcomes.failure, ValueError)
    assert outcomes.failure.__notes__ == [
        "raised by rank 0 of 4",
        "rank 1 had died: signal 1",
        "rank 2 had died: signal 2",
    ]
    assert outcomes.running == {3}


@BOTH
def test_a_typed_error_comes_home_with_its_fields(processes: bool) -> None:
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        tokenyard.launch(refuse_wrong_x, ranks=2, processes=processes)
    assert caught.value.argument == "hidden"
    assert "7" in caught.value.seen


@BOTH
def test_ranks_that_never_end_do_not_delay_a_failure(processes: bool) -> None:
    begin = time.monotonic()
    with pytest.raises(ValueError, match="at once"):
        tokenyard.launch(sleep_on_rank_0, ranks=2, processes=processes)
    assert time.monotonic() - begin < 30  # Not the minute that rank 0 sleeps.
    assert not multiprocessing.active_children()


def test_ctrl_c_does_not_hurry_what_is_ending_already() -> None:
    came_to_an_end = []

    def interrupt_while_it_ends(world: tokenyard.World) -> None:
        if world.rank == 1:
            raise KeyError("lost key")
        try:
            world.barrier("for a rank that has failed")
        finally:
            os.kill(os.getpid(), signal.SIGINT)  # To the thread that launched.
            time.sleep(0.2)
            came_to_an_end.append(world.rank)

    with pytest.raises(KeyError, match="lost key"):
        tokenyard.launch(interrupt_while_it_ends, ranks=2)
    assert came_to_an_end == [0]


def test_threads_of_a_launch_that_failed_are_gone() -> None:
    of_thread = threading.local()
    let_go = []

    class Slow:
        def __del__(self) -> None:
            time.sleep(0.2)
            let_go.append(self)

    def hold_until_the_thread_is_gone(world: tokenyard.World) -> None:
        of_thread.slow = Slow()
        fail_on_rank_1(world)

    with pytest.raises(KeyError, match="lost key"):
        tokenyard.launch(hold_until_the_thread_is_gone, ranks=2)
    assert len(let_go) == 2


def test_an_exception_that_cannot_travel_is_told_as_text() -> None:
    with pytest.raises(tokenyard.Error, match="Stubborn: one and two") as caught:
        tokenyard.launch(fail_stubbornly, ranks=1, processes=True)
    assert any("fail_stubbornly" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("die", [die_on_rank_1, die_while_sending_on_rank_1])
def test_a_killed_process_is_named(die: Callable[[tokenyard.World], object]) -> None:
    with pytest.raises(tokenyard.ProcessDied, match="rank 1 was killed by SIGKILL") as caught:
        tokenyard.launch(die, ranks=2, processes=True)
    assert (caught.value.rank, caught.value.exit_code) == (1, -signal.SIGKILL)
    assert not multiprocessing.active_children()


@BOTH
def test_a_rank_that_exits_is_named_before_those_it_has_left(processes: bool) -> None:
    with pytest.raises(tokenyard.ProcessDied, match="rank 1 exited with 1") as caught:
        tokenyard.launch(exit_on_rank_1, ranks=2, processes=processes)
    assert (caught.value.rank, caught.value.exit_code) == (1, 1)
    notes = getattr(caught.value, "__notes__", [])
    assert not any("raised by" in note for note in notes)  # No rank has raised it.


@BOTH
def test_a_rank_that_returns_early_is_told_to_have_left(processes: bool) -> None:
    waited = tokenyard.launch(
        wait_for_rank_1_that_returns, ranks=2, processes=processes, timeout=600
    )
    assert waited[0] < 60  # Long before the deadline of the host's wait and of the kernel's.


def test_a_goodbye_is_said_though_the_world_is_closed() -> None:
    """A returned array keeps it alive."""

    def layer(world: tokenyard.World) -> np.ndarray | float:
        exchange = tokenyard.ExpertParallel(world, experts=2, hidden=64, topk=1, tokens_max=1)
        x = np.ones((1, 64), ml_dtypes.bfloat16)
        rows = exchange.dispatch(x, np.array([[1]]), np.ones((1, 1), np.float32)).x
        if world.rank == 1:
            del exchange
            world.close()
            return rows
        begin = time.monotonic()
        with pytest.raises(tokenyard.PeerLost, match="it left the world"):
            world.barrier("for a rank that has left")
        return time.monotonic() - begin

    seconds, rows = tokenyard.launch(layer, ranks=2, timeout=8)
    assert seconds < 4
    assert rows.shape == (2, 64)


def test_a_goodbye_is_said_in_a_rebuilt_world() -> None:
    def layer(world: tokenyard.World) -> tokenyard.World | float:
        if world.rank == 2:
            return 0
        fewer = world.rebuild([2])
        if fewer.rank == 1:
            return fewer
        begin = time.monotonic()
        with pytest.raises(tokenyard.PeerLost, match="it left the world"):
            fewer.barrier("for a rank that has left")
        return time.monotonic() - begin

    assert tokenyard.launch(layer, ranks=3, timeout=8)[0] < 4


def test_a_failure_ends_waits_in_a_rebuilt_world() -> None:
    rebuilt = threading.Event()
    ended = []

    def layer(world: tokenyard.World) -> None:
        if world.rank == 2:
            return
        fewer = world.rebuild([2])
        if fewer.rank == 0:
            assert rebuilt.wait(20)
            raise RuntimeError("on rank 0")
        rebuilt.set()
        with pytest.raises(tokenyard.Cancelled):
            fewer.barrier("for a rank that has failed")
        ended.append(fewer.rank)

    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="on rank 0"):
        tokenyard.launch(layer, ranks=3, timeout=20)
    assert time.monotonic() - begin < 10
    assert ended == [1]


def test_an_exit_with_success_on_a_thread_is_not_that_of_the_program() -> None:
    def exit_at_once(world: tokenyard.World) -> None:
        sys.exit()

    with pytest.raises(tokenyard.ProcessDied, match="the thread of rank 0 exited with 0"):
        tokenyard.launch(exit_at_once, ranks=1)


def test_a_process_that_cannot_start_leaves_no_pipe_open(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[Any] = []

    def recorded(*args: Any) -> tuple[Any, Any]:
        pipe = _pipe(*args)
        ends.extend(pipe)
        return pipe

    monkeypatch.setattr("tokenyard.world.processes._pipe", recorded)
    with pytest.raises(tokenyard.InvalidArgument, match="pickle"):
        tokenyard.launch(lambda world: None, ranks=1, processes=True)
    assert [end.closed for end in ends] == [True, True]


def test_a_result_that_cannot_travel_is_named() -> None:
    with pytest.raises(tokenyard.InvalidArgument, match=r"what fn returned on rank 0: .*World"):
        tokenyard.launch(return_the_world, ranks=1, processes=True)


def test_a_process_that_is_late_to_leave_is_ended_without_a_word(capfd) -> None:
    begin = time.monotonic()
    with pytest.raises(ValueError, match="in a hurry"):
        tokenyard.launch(leave_late_on_rank_1, ranks=2, processes=True)
    assert time.monotonic() - begin < 50
    assert capfd.readouterr().err == ""


@BOTH
def test_ranks_may_have_processes_of_their_own(processes: bool) -> None:
    assert tokenyard.launch(count_in_a_pool, ranks=2, processes=processes) == [[1, 2]] * 2


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        (dict(fn=lambda world: None, processes=True), "fn"),
        (dict(fn="describe"), "fn"),
        (dict(fn=describe, args=5), "args"),
        (dict(fn=describe, timeout="soon"), "timeout"),
    ],
)
def test_wrong_arguments_are_named(given: dict, argument: str) -> None:
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        tokenyard.launch(ranks=2, **given)
    assert caught.value.argument == argument


STACK_BYTES = 256 << 20
SCARCE = """
import os
import resource
import tokenyard

def limit(kind, most):
    resource.setrlimit(kind, (most, most))

def limit_memory(more):
    pages = int(open("/proc/self/statm").read().split()[0])
    limit(resource.RLIMIT_AS, pages * resource.getpagesize() + more)

def limit_files(more):
    limit(resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd")) + more)

def nothing(world):
    pass

if __name__ == "__main__":
    {limit}
    many = dict(ranks={ranks}, processes={processes})
    try:
        tokenyard.launch(nothing, arena_bytes=4096, timeout=600, **many)
    except tokenyard.OsError as error:
        print(error.call)
"""


@pytest.mark.parametrize(
    ("limit", "ranks", "processes", "call"),
    [
        (
            f"limit_memory({4 * STACK_BYTES + STACK_BYTES // 2})",
            200,
            False,
            "start a thread for rank",
        ),
        ("limit_files(9)", 8, True, "for rank"),
    ],
    ids=["threads", "descriptors"],
)
def test_what_the_system_has_no_more_of_is_named(
    tmp_path: Path, limit: str, ranks: int, processes: bool, call: str
) -> None:
    program = tmp_path / "program.py"
    text = SCARCE.replace("{limit}", limit).replace("{ranks}", str(ranks))
    program.write_text(text.replace("{processes}", str(processes)))
    # In less time than the ranks would wait for one another. With large stacks, so that memory
    # suffices for glibc's own small needs, but not for a thread.
    large = partial(resource.setrlimit, resource.RLIMIT_STACK, (STACK_BYTES, STACK_BYTES))
    done = run_python(program, preexec_fn=large, env=os.environ | {"MALLOC_ARENA_MAX": "1"})
    assert call in done.stdout, done.stderr


def test_there_are_no_more_hosts_than_ranks() -> None:
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        tokenyard.launch(describe, ranks=2, processes=True, hosts=3)
    assert caught.value.argument == "hosts"


def test_a_simulated_network_has_no_options() -> None:
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        tokenyard.launch(describe, ranks=2, hosts=2, network=tokenyard.NetworkOptions())
    assert caught.value.argument == "network"


@pytest.mark.parametrize("ranks", [0, -1, 1.5, "two"])
def test_a_number_of_ranks_that_cannot_be(ranks: object) -> None:
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        tokenyard.launch(lambda world: None, ranks=ranks)  # type: ignore[arg-type]
    assert caught.value.argument == "ranks"
