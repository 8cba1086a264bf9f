"""Backend tokenyard on CUDA tensors, tested without a GPU: CPU tensors take their way."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from ranks import Rank, ranks_of, results, results_of
from torch_ranks import dist, needs_torch, torch

import tokenyard

if torch is not None:
    import device_programs as programs

    CPU = torch.device("cpu")

pytestmark = needs_torch


def in_group(say: Any, rank: int, size: int, folder: Path, check: str) -> None:
    with programs.in_group(rank, size, folder, CPU):
        getattr(programs, check)(rank, size, CPU)


@pytest.mark.parametrize("check", ["check_reductions", "check_moves", "check_works"])
def test_operations(check: str, tmp_path: Path) -> None:
    results_of(in_group, 3 if check != "check_works" else 4, tmp_path, check)


def in_a_profile(say: Any, rank: int, size: int, folder: Path) -> list[Any]:
    with programs.in_group(rank, size, folder, CPU):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            dist.all_reduce(torch.ones(100))
            dist.all_gather_into_tensor(torch.empty(6 * size), torch.ones(6), async_op=True).wait()
            dist.barrier()
        trace = folder / f"trace_{rank}.json"
        profile.export_chrome_trace(str(trace))
    told = []
    for event in json.loads(trace.read_text())["traceEvents"]:
        if event.get("name") == "record_param_comms":
            args = event["args"]
            assert args["Process Group Description"] == "default_pg"
            assert (args["Global rank start"], args["Global rank stride"]) == (0, 1)
            told.append([args["Collective name"], args["In msg nelems"], args["Out msg nelems"]])
            assert args["Group size"] == size
    return told


def test_calls_are_in_profiles_as_tools_expect_them(tmp_path: Path) -> None:
    for told in results_of(in_a_profile, 2, tmp_path):
        calls = [call for call in told if call[0] != "wait"]
        assert calls == [["allreduce", 100, 100], ["_allgather_base", 6, 12], ["barrier", 0, 0]]
        assert ["wait", 0, 0] in told


def refused(say: Any, rank: int, size: int, folder: Path) -> tuple[str, int | None]:
    with programs.in_group(rank, size, folder, CPU):
        x = torch.ones(3 + rank % 2)
        try:
            dist.all_reduce(x)
            tokenyard.torch.check_device()
        except tokenyard.InvalidArgument as error:
            return error.argument, error.rank
    raise AssertionError("sizes differed")


def test_calls_that_differ_are_named_on_all_ranks(tmp_path: Path) -> None:
    assert results_of(refused, 3, tmp_path) == [("size", 1)] * 3


def wrong(say: Any, rank: int, size: int, folder: Path) -> None:
    with programs.in_group(rank, size, folder, CPU):
        for call, name in (
            (lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BOR), "op"),
            (lambda: dist.all_reduce(torch.ones(1).expand(3)), "tensor"),
            (lambda: dist.all_gather([torch.empty(2)], torch.ones(2)), "tensor_list"),
            (lambda: dist.send(torch.ones(2), (rank + 1) % size, tag=2**24), "tag"),
            (lambda: dist.recv(torch.ones(2)), "src"),
        ):
            with pytest.raises((ValueError, RuntimeError), match=name):
                call()
        x = torch.ones(3)
        dist.all_reduce(x)
        assert (x == size).all()
        # torch does not end a batch in which a call has raised; later messages are none of it.
        others = [dist.P2POp(dist.isend, torch.ones(2), (rank + 1) % size, tag=2**24)]
        with pytest.raises((ValueError, RuntimeError), match="tag"):
            dist.batch_isend_irecv(others)
        for sends in (rank == 0, rank != 0):
            y = torch.full((4,), float(rank))
            (dist.send if sends else dist.recv)(y, (rank + 1) % size)
            assert (y == (rank if sends else (rank + 1) % size)).all()


def test_wrong_arguments_are_named_and_the_next_call_works(tmp_path: Path) -> None:
    results_of(wrong, 2, tmp_path)


def first_by_some(say: Any, rank: int, size: int, folder: Path) -> None:
    """As with `device_id=`: the group's creation connects all ranks, the first call is by two."""
    with programs.in_group(rank, size, folder, CPU):
        dist.group.WORLD._get_backend(CPU).eager_connect_single_device(CPU)
        x = torch.full((4,), float(rank))
        if rank < 2:
            (dist.send if rank == 0 else dist.recv)(x, 1 - rank)
            assert (x == 0).all()
        if rank == 2:
            mine, came = torch.full((3,), 7.0), torch.zeros(3)
            batch = [dist.P2POp(dist.irecv, came, 2), dist.P2POp(dist.isend, mine, 2)]
            for work in dist.batch_isend_irecv(batch):
                work.wait()
            tokenyard.torch.check_device()
            assert (came == 7).all()
        dist.barrier()


def test_the_first_call_may_be_of_some_ranks_if_the_group_is_connected(tmp_path: Path) -> None:
    results_of(first_by_some, 3, tmp_path)


def replaced(say: Any, rank: int, size: int, folder: Path, join: bool) -> Any:
    """Reduces until a rank dies, goes on with a new one in its place."""
    with programs.in_group(rank, size, folder, CPU, join=join):
        failed = None
        if not join:
            x = torch.ones(100)
            dist.all_reduce(x)
            say("reduced")
            if rank == 1:
                signal.pause()
            calls = programs.operations(size, CPU)
            failed = programs.failure_of(calls["all_reduce"])
            tokenyard.torch.collectives().replace(1)
        x = torch.full((100,), float(rank))
        dist.all_reduce(x)
        assert (x == 3).all()
        pair = dist.new_group([0, 1])
        if rank < 2:
            y = torch.ones(3)
            dist.all_reduce(y, group=pair)
            assert (y == 2).all()
        return failed


def test_a_rank_is_killed_and_replaced(tmp_path: Path) -> None:
    with ranks_of(replaced, 3, tmp_path, False) as ranks:
        for rank in ranks:
            rank.hears("reduced")
        ranks[1].kill()
        new = Rank(replaced, 1, 3, tmp_path, True)
        try:
            seen = results([ranks[0], new, ranks[2]])
        finally:
            new.end()
    for outcome in (seen[0], seen[2]):
        assert outcome[0] in ("PeerLost", "OperationAborted")
        assert outcome[1] in (1, None)


def stopped(say: Any, rank: int, size: int, folder: Path, operation: str) -> None:
    with programs.in_group(rank, size, folder, CPU):
        call = programs.operations(size, CPU)[operation]
        call()
        say("called")
        if rank == 1:
            signal.pause()
        for error, named in (programs.failure_of(call), programs.failure_of(call)):
            assert error in ("PeerLost", "OperationAborted"), error
            assert named == 1 or error == "OperationAborted", (error, named)
        say("failed")
        os.kill(os.getpid(), signal.SIGKILL)  # The end of a group is another test's.


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "all_to_all"])
def test_a_killed_rank_ends_calls(operation: str, tmp_path: Path) -> None:
    with ranks_of(stopped, 3, tmp_path, operation) as ranks:
        for rank in ranks:
            rank.hears("called")
        ranks[1].kill()
        for rank in (ranks[0], ranks[2]):
            rank.hears("failed")


def finish_one_more(say: Any, rank: int, size: int, folder: Path) -> list[list[str]]:
    """Ranks 0 and 1 finish the sixth call; rank 2, its root, does not wait for their parts.

    Returns how each of the works ended before the ranks went on, and after.
    """
    with programs.in_group(rank, size, folder, CPU):
        store = dist.distributed_c10d._get_default_store()
        x = torch.full((70,), float(rank))
        works = [dist.all_reduce(x, async_op=True) for _ in range(5)]
        for work in works:
            work.wait()
        if rank == 2:
            dist.distributed_c10d._set_pg_timeout(timedelta(milliseconds=1), dist.group.WORLD)
        else:
            store.wait(["failed"])
        works.append(dist.reduce(x, 2, async_op=True))
        seen = [[how_ended(work) for work in works]]
        store.set("failed", "1")
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=60), dist.group.WORLD)
        say("called")
        if rank == 1:
            signal.pause()
        job = tokenyard.torch.collectives()
        while job.recover() != [0, 2]:
            time.sleep(0.01)
        assert tokenyard.torch.go_on() == 5
        seen.append([how_ended(work) for work in works])
        works[-1].get_future()  # Of a failed work, without a deadlock.
        y = torch.full((3,), float(rank))
        dist.all_reduce(y)
        assert (y == 2).all()
        return seen


def how_ended(work: Any) -> str:
    try:
        work.wait()
    except tokenyard.Error as error:
        assert not work.is_success()
        return type(error).__name__
    return "done"


def test_works_that_not_all_ranks_have_finished_raise_on_every_survivor(tmp_path: Path) -> None:
    with ranks_of(finish_one_more, 3, tmp_path) as ranks:
        for rank in ranks:
            rank.hears("called")
        ranks[1].kill()
        seen = results([ranks[0], ranks[2]])
    well = ["done"] * 5
    # Rank 0 has all of the last call's data: it has none to wait for.
    assert seen[0] == [[*well, "done"], [*well, "OperationAborted"]]
    assert seen[1] == [[*well, "PeerTimeout"], [*well, "OperationAborted"]]


def polling(say: Any, rank: int, size: int, folder: Path, join: bool) -> None:
    """A thread polls a work while another one's call waits on the host for a new rank."""
    options = dict(keep_inputs=True, on_failure="retry", join=join)
    with programs.in_group(rank, size, folder, CPU, **options):
        x = torch.ones(10)
        if not join:
            work = dist.all_reduce(x, async_op=True)
            work.wait()
            say("called")
            if rank == 1:
                signal.pause()
            polls = 0

            def poll() -> None:
                nonlocal polls
                while caller.is_alive():
                    work.is_completed()
                    polls += 1

            x = torch.ones(10)
            caller = threading.Thread(target=dist.all_reduce, args=(x,))
            poller = threading.Thread(target=poll)
            caller.start()
            poller.start()
            # Until a poll waits for the call. A call that Python's lock stops never gets here.
            before, since = -1, time.monotonic()
            while time.monotonic() < since + 0.5:
                if polls != before:
                    before, since = polls, time.monotonic()
                time.sleep(0.01)
            say("others run")
            caller.join()
            poller.join()
        else:
            dist.all_reduce(x)
        assert (x == size).all()


def test_a_thread_that_polls_a_work_stops_no_other(tmp_path: Path) -> None:
    with ranks_of(polling, 2, tmp_path, False) as ranks:
        for rank in ranks:
            rank.hears("called")
        ranks[1].kill()
        ranks[0].hears("others run")
        new = Rank(polling, 1, 2, tmp_path, True)
        try:
            results([ranks[0], new])
        finally:
            new.end()


def aborted(say: Any, rank: int, size: int, folder: Path) -> str | None:
    """Aborts the group while its first call on a device waits for another rank, which never comes.

    Returns the error of that call.
    """
    with programs.in_group(rank, size, folder, CPU):
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["aborted"])
            dist.distributed_c10d._abort_process_group()
            return None
        errors: list[str] = []

        def call() -> None:
            try:
                dist.all_reduce(torch.ones(3))
            except tokenyard.Error as error:
                errors.append(type(error).__name__)

        state = tokenyard.torch.backend_state.state_with_job(None)
        caller = threading.Thread(target=call)
        caller.start()
        while not state._device_lock.locked():
            time.sleep(0.01)
        dist.distributed_c10d._abort_process_group()
        store.set("aborted", "1")
        caller.join()
        return errors[0]


def test_abort_does_not_wait_for_the_first_call(tmp_path: Path) -> None:
    """That call would end with PeerTimeout."""
    assert results_of(aborted, 2, tmp_path)[0] == "Cancelled"


def trained(say: Any, rank: int, size: int, folder: Path, backend: str, kind: str) -> list[float]:
    with programs.in_group(rank, size, folder, CPU, backend):
        return programs.train(rank, size, CPU, kind)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_training_equals_that_of_gloo(kind: str, tmp_path: Path) -> None:
    losses = {}
    for backend in ("tokenyard", "gloo"):
        (tmp_path / backend).mkdir()
        losses[backend] = results_of(trained, 2, tmp_path / backend, backend, kind)
    for ours, theirs in zip(losses["tokenyard"], losses["gloo"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
        assert ours[-1] < ours[0]


def through_a_death(say: Any, rank: int, size: int, folder: Path, join: bool) -> list[float]:
    with programs.in_group(rank, size, folder, CPU, join=join):
        return programs.train_through_a_death(rank, CPU, join, say)


def test_a_training_goes_on_with_a_new_rank(tmp_path: Path) -> None:
    with ranks_of(through_a_death, 3, tmp_path, False) as ranks:
        ranks[1].hears("dies")
        ranks[1].kill()
        new = Rank(through_a_death, 1, 3, tmp_path, True)
        try:
            losses = results([ranks[0], new, ranks[2]])
        finally:
            new.end()
    for rank in (0, 2):
        assert losses[rank] == pytest.approx(programs.undisturbed(rank, 3), rel=1e-3)
    assert losses[1][-5:] == pytest.approx(programs.undisturbed(1, 3)[-5:], rel=1e-3)
