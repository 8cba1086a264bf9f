"""ServedBatch, apart from the tests of the packages that use it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

try:
    import torch
except ModuleNotFoundError:
    torch = None  # Skipped test by test: a file without tests counts as a failure.
else:
    from tokenyard.compat.served_batch import moved, on_stream_of_call

pytestmark = pytest.mark.skipif(torch is None, reason="needs torch")


def test_a_hook_runs_on_the_stream_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    current = ["of the call"]

    @contextlib.contextmanager
    def on(stream: str) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device_index: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", on)
    seen: list[str] = []
    hook = on_stream_of_call(lambda: seen.append(current[-1]), 0)
    on_host = on_stream_of_call(lambda: seen.append(current[-1]), None)
    with on("another"):
        hook()
        on_host()  # There are none.
    assert seen == ["of the call", "another"]


def test_rows_move_to_where_they_lie_without_a_rank() -> None:
    y = torch.arange(16.0).reshape(2, 8, 1)
    before = torch.tensor([[[0, 2], [2, 3], [5, 1]], [[0, 0], [0, 4], [4, 2]]], dtype=torch.int32)
    after = torch.tensor([[[0, 2], [2, 0], [2, 1]], [[0, 0], [0, 0], [0, 2]]], dtype=torch.int32)
    there = moved(y, before, after)[..., 0]
    assert there[0, :3].tolist() == [0, 1, 5]
    assert there[1, :2].tolist() == [12, 13]
    assert torch.equal(moved(y, before, before)[0, :6], y[0, :6])


def test_rows_of_each_rank_move_by_their_own_distance() -> None:
    y = torch.arange(8.0).reshape(1, 8, 1)
    before = torch.tensor([[[0, 1], [1, 2], [5, 3]]], dtype=torch.int32)
    after = torch.tensor([[[0, 1], [3, 2], [5, 3]]], dtype=torch.int32)
    there = moved(y, before, after)[0, :, 0].tolist()
    assert [there[0], *there[3:]] == [0, 1, 2, 5, 6, 7]
