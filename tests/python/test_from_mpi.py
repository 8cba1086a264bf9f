"""Ranks that meet through a communicator of mpi4py: a stand-in of threads or processes, or MPI."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deep_ep_batch import NVL_BYTES, PACKAGE, needs_torch, torch
from ranks import results_of

import tokenyard
from tokenyard.world import rendezvous

RANKS = 3
SOON_S = 100
"""Seconds for steps that should be immediate, on any machine."""


class StandIn:
    """The part of mpi4py's communicator that is used, over `allgather`."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def Get_rank(self) -> int:  # noqa: N802
        return self._rank

    def Get_size(self) -> int:  # noqa: N802
        return self._size

    def allgather(self, mine: Any) -> list[Any]:
        raise NotImplementedError

    def bcast(self, mine: Any, root: int = 0) -> Any:
        return self.allgather(mine)[root]


class AmongThreads(StandIn):
    def __init__(self, rank: int, places: list[Any], meeting: threading.Barrier) -> None:
        super().__init__(rank, len(places))
        self._places, self._meeting = places, meeting

    def allgather(self, mine: Any) -> list[Any]:
        self._places[self._rank] = mine
        self._meeting.wait(SOON_S)
        everybodys = list(self._places)
        self._meeting.wait(SOON_S)
        return everybodys


class AmongProcesses(StandIn):
    """Over files, each of which is written once."""

    def __init__(self, folder: str, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._folder, self._calls = Path(folder), 0

    def allgather(self, mine: Any) -> list[Any]:
        self._calls += 1
        unfinished = self._folder / f"{self._calls}-{self._rank}-unfinished"
        unfinished.write_bytes(pickle.dumps(mine))
        unfinished.rename(self._folder / f"{self._calls}-{self._rank}")
        return [self._read(rank) for rank in range(self._size)]

    def _read(self, rank: int) -> Any:
        path = self._folder / f"{self._calls}-{rank}"
        end = time.monotonic() + SOON_S
        while not path.exists():
            assert time.monotonic() < end, f"rank {rank} is late"
            time.sleep(0.01)
        return pickle.loads(path.read_bytes())


@pytest.fixture(autouse=True)
def no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENYARD_SECRET", raising=False)
    monkeypatch.delenv("TOKENYARD_SECRET_FILE", raising=False)


def outcomes(call: Callable[[Any], Any] = rendezvous.from_mpi) -> list[Any]:
    """Returns each rank's result of `call(comm)`, or its error."""
    came: list[Any] = [None] * RANKS
    places: list[Any] = [None] * RANKS
    meeting = threading.Barrier(RANKS)

    def take_part(rank: int) -> None:
        try:
            came[rank] = call(AmongThreads(rank, places, meeting))
        except Exception as error:
            came[rank] = error

    running = [threading.Thread(target=take_part, args=(rank,)) for rank in range(RANKS)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(SOON_S)
    return came


def test_ranks_find_their_places() -> None:
    first, second, third = outcomes()
    assert [place.rank for place in (first, second, third)] == [0, 1, 2]
    assert {place.size for place in (first, second, third)} == {RANKS}
    assert {place.host for place in (first, second, third)} == {"127.0.0.1"}
    assert first.port == second.port == third.port == first.held.number
    assert first.job == second.job == third.job
    assert first.secret == second.secret == third.secret
    assert len(first.secret) == 32
    assert second.held is None
    first.held.release()
    other = outcomes()[0]
    other.held.release()
    assert other.job != first.job


def test_ranks_of_two_hosts_connect_to_rank_0s(monkeypatch: pytest.MonkeyPatch) -> None:
    here = threading.local()
    monkeypatch.setattr(rendezvous.socket, "gethostname", lambda: here.host)
    monkeypatch.setattr(rendezvous, "host_address", lambda: f"address of {here.host}")

    def call(comm: StandIn) -> Any:
        here.host = ("a", "b", "b")[comm.Get_rank()]
        return rendezvous.from_mpi(comm)

    places = outcomes(call)
    places[0].held.release()
    assert {place.host for place in places} == {"address of a"}
    if torch is None or not torch.cuda.is_initialized():
        assert [place.local_rank for place in places] == [0, 0, 1]


def test_a_fault_of_rank_0_is_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_port() -> Any:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(rendezvous, "HeldPort", no_port)
    assert [(type(each), each.errno) for each in outcomes()] == [(OSError, 98)] * RANKS


def test_a_fault_in_a_secret_is_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENYARD_SECRET", "short")
    assert [error.argument for error in outcomes()] == ["TOKENYARD_SECRET"] * RANKS


@pytest.mark.parametrize(("owners", "seen"), [((0, 1), "nothing"), ((2,), "a secret")])
def test_a_secret_on_some_ranks_is_everybodys_error(
    owners: tuple[int, ...], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.local()

    def meet(comm: Any) -> Any:
        here.rank = comm.Get_rank()
        return rendezvous.from_mpi(comm)

    monkeypatch.setattr(
        rendezvous,
        "secret_in_environment",
        lambda: "9f2c61d07b5e4a83" if here.rank in owners else None,
    )
    for error in outcomes(meet):
        assert isinstance(error, tokenyard.InvalidArgument), error
        assert (error.argument, error.rank, error.seen) == ("TOKENYARD_SECRET_FILE", 2, seen)


def test_what_is_no_communicator() -> None:
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        rendezvous.from_mpi("MPI.COMM_WORLD")
    assert (caught.value.argument, caught.value.seen) == ("comm", "a str")


BUFFER = """
import torch
import deep_ep


def layer(comm, nvl_bytes):
    buffer = deep_ep.Buffer(
        None, nvl_bytes, explicitly_destroy=True, comm=comm, device="host", timeout=60
    )
    assert (buffer.rank, buffer.group_size) == (comm.Get_rank(), comm.Get_size())
    other = (buffer.rank + 1) % buffer.group_size
    x = torch.full((2, 32), float(buffer.rank + 1), dtype=torch.bfloat16)
    topk_idx = torch.tensor([[buffer.rank], [other]])
    _, _, per_expert, _, _ = buffer.get_dispatch_layout(topk_idx, buffer.group_size)
    rows, ids, weights, counts, handle, _ = buffer.dispatch(
        x, num_tokens_per_expert=per_expert, topk_idx=topk_idx, topk_weights=torch.ones(2, 1)
    )
    home, _, _ = buffer.combine(rows * 2, handle)
    right = bool((home == x * 2).all()) and counts == [2]
    buffer.destroy()
    return right
"""


def in_process(say: Any, rank: int, size: int, folder: str, package: str) -> bool:
    sys.path.insert(0, package)
    names: dict[str, Any] = {}
    exec(BUFFER, names)
    return bool(names["layer"](AmongProcesses(folder, rank, size), NVL_BYTES))


@needs_torch
def test_a_buffer_of_processes(tmp_path: Path) -> None:
    assert results_of(in_process, 2, str(tmp_path), str(PACKAGE)) == [True, True]


@needs_torch
def test_a_buffer_needs_a_group_or_a_communicator() -> None:
    import deep_ep

    with pytest.raises(tokenyard.InvalidArgument, match="comm"):
        deep_ep.Buffer(None, NVL_BYTES)
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        deep_ep.Buffer(None, NVL_BYTES, comm=object(), device="host")
    assert caught.value.argument == "comm"


@needs_torch
@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py")
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")
def test_a_buffer_of_mpi4py(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    main = f"{BUFFER}\nfrom mpi4py import MPI\nassert layer(MPI.COMM_WORLD, {NVL_BYTES})\n"
    program.write_text(f"import sys\nsys.path.insert(0, {str(PACKAGE)!r})\n{main}", "utf-8")
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True)
    options = []
    if "Open" in version.stdout:
        options = ["--oversubscribe"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])
    command = ["mpirun", *options, "-n", "2", sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr
