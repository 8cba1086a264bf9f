"""Backend tokenyard on CUDA tensors of two GPUs: every operation, DDP and FSDP2 beside NCCL, ranks
that are killed, stopped and replaced.

    python -m pytest tests/python/test_cuda_collectives.py
    python tests/python/test_cuda_collectives.py [WORD ...]   # tests whose names have a word

As a program it needs no pytest, and exits with 0 if all tests have passed.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

try:
    import pytest
except ModuleNotFoundError:
    pytest = None  # type: ignore[assignment]
try:
    import torch

    GPUS = torch.cuda.device_count()
except ModuleNotFoundError:
    GPUS = 0
if GPUS >= 2:
    import device_programs as programs

if pytest is not None:
    pytestmark = pytest.mark.skipif(GPUS < 2, reason="needs torch and two GPUs")

SIZE = 2
LONGEST_S = 240.0
OPERATIONS = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "messages",
)


class Rank:
    """A process that calls `fn(say, rank, *args)`; its words and its result come by a pipe."""

    def __init__(self, fn: Callable[..., Any], rank: int, *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._inbox, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_main, args=(theirs, fn, rank, args), daemon=True)
        self._process.start()
        theirs.close()
        self.rank = rank

    def next(self, timeout: float = LONGEST_S) -> tuple[str, Any]:
        if not self._inbox.poll(timeout):
            raise AssertionError(f"rank {self.rank} said nothing for {timeout} s")
        try:
            return self._inbox.recv()
        except EOFError:
            self._process.join(10)
            return "died", self._process.exitcode

    def hears(self, word: str) -> None:
        kind, value = self.next()
        assert (kind, value) == ("said", word), f"rank {self.rank}: {kind} {value}"

    def result(self) -> Any:
        kind, value = self.next()
        assert kind == "returned", f"rank {self.rank}: {kind}\n{value}"
        return value

    def signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def end(self) -> None:
        if self._process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGKILL)
        self._process.join(20)


def _main(home: Any, fn: Callable[..., Any], rank: int, args: tuple[Any, ...]) -> None:
    try:
        home.send(("returned", fn(lambda word: home.send(("said", word)), rank, *args)))
    except BaseException:
        home.send(("raised", traceback.format_exc()))


@contextlib.contextmanager
def ranks_of(fn: Callable[..., Any], *args: Any) -> Iterator[list[Rank]]:
    """Starts a process per GPU; ends all of them."""
    ranks = [Rank(fn, rank, *args) for rank in range(SIZE)]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


def results_of(fn: Callable[..., Any], *args: Any) -> list[Any]:
    with ranks_of(fn, *args) as ranks:
        return [rank.result() for rank in ranks]


def gpu(rank: int) -> Any:
    return torch.device("cuda", rank)


# ---- operations -------------------------------------------------------------------------------


def checked(say: Any, rank: int, folder: Path, backend: str, check: str) -> None:
    programs.SIZES = (0, 1, 7, 1000, 200_001)
    with programs.in_group(rank, SIZE, folder, gpu(rank), backend):
        getattr(programs, check)(rank, SIZE, gpu(rank))


def test_reductions(tmp_path: Path) -> None:
    results_of(checked, tmp_path, "tokenyard", "check_reductions")


def test_moves(tmp_path: Path) -> None:
    results_of(checked, tmp_path, "cuda:tokenyard,cpu:tokenyard", "check_moves")


def test_works(tmp_path: Path) -> None:
    results_of(checked, tmp_path, "tokenyard", "check_works")


def large(say: Any, rank: int, folder: Path) -> None:
    """Reduces 256 MB, in a graph that is replayed, and beside other work on another stream."""
    import torch.distributed as dist

    with programs.in_group(rank, SIZE, folder, gpu(rank)):
        x = torch.full((64 << 20,), float(rank + 1), device=gpu(rank))
        work = dist.all_reduce(x, async_op=True)
        y = torch.randn(2048, 2048, device=gpu(rank))
        y = y @ y
        work.wait()
        assert bool((x == 3).all())
        small = torch.zeros(1000, device=gpu(rank))
        dist.all_reduce(small)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            small += 1
            dist.all_reduce(small)
        small.zero_()
        for _ in range(5):
            graph.replay()
        torch.cuda.synchronize()
        assert bool((small == 2 + 4 + 8 + 16 + 32).all()), small[0]


def test_large_tensors_and_graphs(tmp_path: Path) -> None:
    results_of(large, tmp_path)


def differs(say: Any, rank: int, folder: Path) -> tuple[str, int | None]:
    import torch.distributed as dist

    import tokenyard
    import tokenyard.torch

    with programs.in_group(rank, SIZE, folder, gpu(rank)):
        try:
            dist.all_reduce(torch.ones(3 + rank, device=gpu(rank)))
            tokenyard.torch.check_device()
        except tokenyard.InvalidArgument as error:
            return error.argument, error.rank
    raise AssertionError("sizes differed")


def test_calls_that_differ_are_named_on_all_ranks(tmp_path: Path) -> None:
    assert results_of(differs, tmp_path) == [("size", 1)] * SIZE


# ---- training ---------------------------------------------------------------------------------


def trained(say: Any, rank: int, folder: Path, backend: str, kind: str) -> list[float]:
    with programs.in_group(rank, SIZE, folder, gpu(rank), backend):
        return programs.train(rank, SIZE, gpu(rank), kind, steps=40)


def check_training(kind: str, folder: Path) -> None:
    losses = {}
    for backend in ("tokenyard", "nccl"):
        (folder / backend).mkdir()
        losses[backend] = results_of(trained, folder / backend, backend, kind)
    for ours, theirs in zip(losses["tokenyard"], losses["nccl"], strict=True):
        assert close(ours, theirs), (ours, theirs)


def close(ours: list[float], theirs: list[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(ours, theirs, strict=True))


def test_ddp_trains_as_with_nccl(tmp_path: Path) -> None:
    check_training("ddp", tmp_path)


def test_fsdp2_trains_as_with_nccl(tmp_path: Path) -> None:
    check_training("fsdp2", tmp_path)


def through_a_death(say: Any, rank: int, folder: Path, join: bool) -> list[float]:
    with programs.in_group(rank, SIZE, folder, gpu(rank), join=join):
        return programs.train_through_a_death(rank, gpu(rank), join, say)


def test_a_training_goes_on_with_a_new_rank(tmp_path: Path) -> None:
    with ranks_of(through_a_death, tmp_path, False) as ranks:
        ranks[1].hears("dies")
        ranks[1].signal(signal.SIGKILL)
        new = Rank(through_a_death, 1, tmp_path, True)
        try:
            losses = [ranks[0].result(), new.result()]
        finally:
            new.end()
    assert close(losses[0], programs.undisturbed(0, SIZE)), losses[0]
    assert close(losses[1][-5:], programs.undisturbed(1, SIZE)[-5:]), losses[1]


# ---- ranks that die and hang --------------------------------------------------------------------


def fails(say: Any, rank: int, folder: Path, operation: str) -> None:
    """Calls until it fails, and once more; then the GPU still computes."""
    with programs.in_group(rank, SIZE, folder, gpu(rank)):
        call = programs.operations(SIZE, gpu(rank))[operation]
        call()
        torch.cuda.synchronize()
        say("called")
        if rank == 1:
            time.sleep(600)
        for _ in range(2):
            say(programs.failure_of(call))
        x = torch.ones(1000, device=gpu(rank))
        say(float((x + x).sum()))
        os.kill(os.getpid(), signal.SIGKILL)


def check_failure(operation: str, number: int, folder: Path) -> float:
    """Returns the seconds until the survivor's first error."""
    with ranks_of(fails, folder, operation) as ranks:
        for rank in ranks:
            rank.hears("called")
        begin = time.monotonic()
        ranks[1].signal(number)
        for _ in range(2):
            kind, (error, named) = ranks[0].next()
            took = time.monotonic() - begin
            assert kind == "said"
            assert error in ("PeerLost", "PeerTimeout", "OperationAborted"), error
            assert named in (1, None), (error, named)
        assert ranks[0].next() == ("said", 2000.0)
    return took


def test_a_killed_rank_ends_every_operation(tmp_path: Path) -> None:
    for operation in OPERATIONS:
        (tmp_path / operation).mkdir()
        took = check_failure(operation, signal.SIGKILL, tmp_path / operation)
        print(f"    {operation}: killed, survivor's second error after {took:.1f} s", flush=True)


def test_a_stopped_rank_ends_every_operation(tmp_path: Path) -> None:
    for operation in OPERATIONS:
        (tmp_path / operation).mkdir()
        took = check_failure(operation, signal.SIGSTOP, tmp_path / operation)
        print(f"    {operation}: stopped, survivor's second error after {took:.1f} s", flush=True)


def main(words: list[str]) -> int:
    if GPUS < 2:
        print("needs torch and two GPUs")
        return 2
    import tokenyard.torch  # noqa: F401  Builds the backend once, before ranks need it.

    failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_") or (words and not any(word in name for word in words)):
            continue
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                test(Path(folder))
                outcome = "passed"
            except BaseException:
                traceback.print_exc()
                outcome, failed = "FAILED", failed + 1
        print(f"{outcome} {name} ({time.monotonic() - begin:.1f} s)", flush=True)
    print("all passed" if failed == 0 else f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
