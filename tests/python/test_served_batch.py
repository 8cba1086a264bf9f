"""What batches are to callers of other packages, apart from those packages' own tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

try:
    import torch
except ModuleNotFoundError:
    torch = None  # Skipped test by test: a file without any would count as a failure.
else:
    from tokenyard.served_batch import on_stream_of_call

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
