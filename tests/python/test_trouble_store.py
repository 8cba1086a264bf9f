"""The process of a job's store is killed, and then a rank: the others need no store to go on."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from ranks import Rank, ranks_of, results
from test_trouble import PATIENT_S, RANKS, SECRET, done_of, shared_files, survive

import tokenyard


def serve(say: Any) -> None:
    with tokenyard.StoreServer(secret=SECRET, host="127.0.0.1", port=0) as server:
        say(server.address)
        time.sleep(10 * PATIENT_S)


@pytest.mark.parametrize("lost", [0, 2])
def test_a_job_goes_on_without_its_store(lost: int) -> None:
    before = shared_files()
    server = Rank(serve)
    try:
        kind, store = server.next_word()
        assert kind == "said", store
        falls = {lost: "phase"}
        arguments = (store, "dispatch", falls, signal.SIGKILL, PATIENT_S)
        with ranks_of(survive, RANKS, *arguments) as ranks:
            for rank in ranks:
                rank.hears("at work")
            server.kill()
            survivors = [rank for rank in ranks if rank.number != lost]
            for rank in survivors:
                rank.hears("went on")
            with pytest.raises(tokenyard.OsError, match=r"the store at 127\.0\.0\.1"):
                tokenyard.connect(
                    store, secret=SECRET, rank=lost, size=RANKS, join=True, timeout=1.0
                )
            Path(done_of(store)).touch()
            outcomes = results(survivors)
            Path(done_of(store)).unlink()
    finally:
        server.end()
    epochs, members, failures, _, left = zip(*outcomes, strict=True)
    assert set(map(tuple, members)) == {tuple(n for n in range(RANKS) if n != lost)}
    assert len(set(epochs)) == 1
    assert {name for names in failures for name in names} == {"OperationAborted"}
    assert set(left) == {""}
    assert shared_files() <= before
