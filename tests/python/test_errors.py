"""The exception classes by themselves, and as they arrive from C++."""

from __future__ import annotations

import pickle
import threading

import pytest

import tokenyard
from tokenyard import errors

ARGUMENT = dict(argument="graph", expected="8", seen="7", rank=1)
WAIT = dict(rank=2, phase="dispatch: counts", expected=7, seen=6, waited_s=0.5)
EXAMPLES = [
    tokenyard.InvalidArgument("m", argument="hidden", expected="8", seen="7", rank=1),
    errors.InvalidGraph("m", **ARGUMENT, fault="cycle", witness=["a", "b", "a"], fix="no"),
    tokenyard.PeerTimeout("m", **WAIT),
    errors.TaskTimeout("m", **WAIT, dump="worker 0"),
    tokenyard.PeerLost("m", **WAIT),
    tokenyard.Cancelled("m", phase="barrier"),
    tokenyard.OperationAborted("m", operation="reduce", sequence=9, epoch=2, lost=[1, 3]),
    tokenyard.QuorumLost("m", answering=[0], needed=2),
    tokenyard.Fenced("m", epoch=4),
    tokenyard.NetworkFault(
        "m", rank=0, peer=1, queue=2, region=3, check="size", phase="p", expected=1, seen=2
    ),
    tokenyard.Unsupported("m", asked="a", why="b"),
    tokenyard.OsError("m", call="mmap", code=12),
    tokenyard.InternalError("m"),
    tokenyard.ProcessDied("m", rank=1, exit_code=-9),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_pickle_keeps_type_sentence_fields_and_notes(error: tokenyard.Error) -> None:
    error.add_note("raised by rank 3 of 4")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error) == "m"
    assert vars(copy) == vars(error)
    assert copy.__notes__ == ["raised by rank 3 of 4"]


@pytest.mark.parametrize(
    ("ours", "builtin"),
    [
        (tokenyard.InvalidArgument, ValueError),
        (errors.InvalidGraph, ValueError),
        (tokenyard.PeerTimeout, TimeoutError),
        (errors.TaskTimeout, TimeoutError),
        (tokenyard.PeerLost, ConnectionError),
        (tokenyard.OperationAborted, RuntimeError),
        (tokenyard.QuorumLost, ConnectionError),
        (tokenyard.Fenced, ConnectionError),
        (tokenyard.OsError, OSError),
    ],
)
def test_second_bases(ours: type, builtin: type) -> None:
    assert issubclass(ours, tokenyard.Error)
    assert issubclass(ours, builtin)


def test_a_timeout_names_rank_phase_and_time() -> None:
    told = threading.Semaphore(0)

    def one_stays_away(world: tokenyard.World) -> tokenyard.PeerTimeout | None:
        if world.rank == 1:
            # Still running; otherwise the others would learn that it left.
            assert all(told.acquire(timeout=60) for _ in range(2))
            return None
        with pytest.raises(tokenyard.PeerTimeout) as caught:
            world.barrier("roll call")
        told.release()
        return caught.value

    errors = tokenyard.launch(one_stays_away, ranks=3, timeout=5)
    for error in (errors[0], errors[2]):
        assert error is not None
        assert error.rank == 1
        assert "roll call" in error.phase
        assert error.waited_s > 4.9  # The wait and the error read the clock at different times.
        assert "1" in str(error)
        assert "roll call" in str(error)


def test_ranks_that_call_different_things_are_told() -> None:
    def at_odds(world: tokenyard.World) -> str:
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            world.barrier("left" if world.rank else "right")
        return str(caught.value)

    for sentence in tokenyard.launch(at_odds, ranks=2):
        assert "left" in sentence
        assert "right" in sentence
