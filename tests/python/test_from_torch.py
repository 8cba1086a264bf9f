"""World.from_torch: the exchange among the ranks of a process group. Needs no torch."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tokenyard
from tokenyard.world import rendezvous

RANKS = 3
SOON_S = 20
"""Seconds for steps that should be immediate, on any machine."""


@pytest.fixture(autouse=True)
def no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENYARD_SECRET", raising=False)
    monkeypatch.delenv("TOKENYARD_SECRET_FILE", raising=False)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A process group whose ranks are threads, which pass their number to `sit` first."""
    here = threading.local()
    everybodys: list[Any] = [None] * RANKS
    meeting = threading.Barrier(RANKS)

    def all_gather_object(gathered: list[Any], mine: Any, group: Any) -> None:
        everybodys[here.rank] = mine
        meeting.wait(SOON_S)
        gathered[:] = everybodys

    torch, dist = ModuleType("torch"), ModuleType("torch.distributed")
    torch.distributed = dist  # type: ignore[attr-defined]
    torch.cuda = SimpleNamespace(is_available=lambda: False)  # type: ignore[attr-defined]
    vars(dist).update(
        get_rank=lambda group: here.rank,
        get_world_size=lambda group: RANKS,
        all_gather_object=all_gather_object,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    return SimpleNamespace(sit=lambda rank: setattr(here, "rank", rank))


def outcomes(group: Any, ranks: list[Any]) -> list[Any]:
    """Returns the outcome on each rank, each with its own `ranks`."""
    came: list[Any] = [None] * RANKS

    def take_part(rank: int) -> None:
        group.sit(rank)
        try:
            came[rank] = rendezvous.from_torch(None, ranks[rank])
        except Exception as error:
            came[rank] = error

    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return came


def test_ranks_find_their_places(group: Any) -> None:
    first, other, second = outcomes(group, [[2, 0]] * RANKS)
    assert other is None
    assert (first.rank, first.size, second.rank, second.size) == (1, 2, 0, 2)
    assert (first.port, first.job) == (second.port, second.job)
    assert first.secret == second.secret
    assert len(first.secret) == 32
    assert first.secret not in repr(first)
    second.held.release()


def test_ranks_bring_their_own_secret(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENYARD_SECRET", "9f2c61d07b5e4a83")
    places = outcomes(group, [None] * RANKS)
    assert {place.secret for place in places} == {"9f2c61d07b5e4a83"}
    places[0].held.release()
    monkeypatch.setenv("TOKENYARD_SECRET", "short")
    for error in outcomes(group, [None] * RANKS):
        assert isinstance(error, tokenyard.InvalidArgument), error
        assert error.argument == "TOKENYARD_SECRET"


@pytest.mark.parametrize(("owners", "seen"), [((0, 1), "nothing"), ((2,), "a secret")])
def test_every_rank_is_told_who_differs_in_its_secret(
    group: Any, owners: tuple[int, ...], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed as dist

    monkeypatch.setattr(
        rendezvous,
        "secret_in_environment",
        lambda: "9f2c61d07b5e4a83" if dist.get_rank(None) in owners else None,
    )
    for error in outcomes(group, [None] * RANKS):
        assert isinstance(error, tokenyard.InvalidArgument), error
        assert (error.argument, error.rank, error.seen) == ("TOKENYARD_SECRET_FILE", 2, seen)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ([0, 0], "none twice"),
        ([], "one or more"),
        ([0, 3], "from 0 to 2"),
        (["0"], "a list of ranks"),
        (5, "a list of ranks"),
    ],
)
def test_every_rank_is_told_who_gave_wrong_ranks(group: Any, wrong: Any, expected: str) -> None:
    for error in outcomes(group, [None, wrong, None]):
        assert isinstance(error, tokenyard.InvalidArgument), error
        assert (error.argument, error.rank) == ("ranks", 1)
        assert expected in error.expected
        assert error.seen == str(wrong)
        assert "ranks on rank 1: expected" in str(error)


def test_ranks_of_one_world_must_agree(group: Any) -> None:
    first, second, third = outcomes(group, [[0, 1], [0, 1, 2], [0, 1, 2]])
    assert (first.rank, first.expected, first.seen) == (1, "[0, 1] as on rank 0", "[0, 1, 2]")
    assert (second.rank, second.expected, second.seen) == (0, "[0, 1, 2] as on rank 1", "[0, 1]")
    assert (third.rank, third.seen) == (0, "[0, 1]")
