"""A link between two of four ranks is cut, both ways or one way, while all of them exchange tokens
and reduce in another thread.

No connection ends, so the ranks learn it by silence. One of the two is evicted; the others agree
and continue, and the evicted one learns it.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from holdings import Holdings
from links import Links, links_of_a_test
from ranks import file_store, ranks_of, results
from test_trouble import (
    LOSSES,
    PATIENT_S,
    RANKS,
    Ranks,
    Tokens,
    await_file,
    done_of,
    reduce_until_it_fails,
    repeat,
    shared_files,
    times_of_first_calls,
    what_is_left,
)

import tokenyard


def work_on(
    say: Any, rank: int, size: int, store: str, phase: str, links: Links
) -> tuple[int, list[int], str] | str:
    links.enter()
    before = Holdings.now()
    ranks = Ranks(rank, size, store, PATIENT_S)
    tokens = Tokens(ranks.world, list(range(size)))
    failures: list[BaseException] = []
    reducing = threading.Thread(target=reduce_until_it_fails, args=(ranks.job, failures))
    assert tokens.combine(tokens.dispatch())
    reducing.start()
    say("at work")
    at = time.monotonic()
    try:
        repeat(phase, tokens)
        reducing.join()
        tokens.close()
        epoch, members = go_on(ranks, at)
    except (tokenyard.OutOfTouch, tokenyard.Fenced):
        reducing.join()
        with pytest.raises(tokenyard.Fenced):
            ranks.job.recover()
        ranks.job.close()
        return "out of touch"
    say("went on")
    await_file(done_of(store))
    ranks.job.close()
    failures.clear()
    del tokens, ranks, reducing
    return epoch, members, what_is_left(before)


def go_on(ranks: Ranks, at: float) -> tuple[int, list[int]]:
    """Returns the epoch in which one of the ranks is out, and its members."""
    deadline = time.monotonic() + PATIENT_S
    while True:
        assert time.monotonic() < deadline
        try:
            members = ranks.recover()
            if len(members) == RANKS:  # A wait was over before the silence was.
                ranks.world.barrier("nobody is out yet")
                time.sleep(0.1)
                continue
            times_of_first_calls(ranks, members, at)
            ranks.world.barrier("all have exchanged")
            return ranks.job.epoch(), members
        except LOSSES:
            continue


@pytest.mark.parametrize("ways", ["both ways", "one way"])
@pytest.mark.parametrize("phase", ["dispatch", "combine", "hooks"])
def test_a_cut_link_costs_one_rank(phase: str, ways: str, tmp_path: Path) -> None:
    before = shared_files()
    store = file_store(tmp_path)
    with (
        links_of_a_test() as links,
        ranks_of(work_on, RANKS, store, phase, links) as ranks,
    ):
        for rank in ranks:
            rank.hears("at work")
        links.cut_between(ranks[1], ranks[2], ways)
        words = [rank.outcome() for rank in ranks]
        out = [number for number, word in enumerate(words) if word == (True, "out of touch")]
        assert out in ([1], [2]), words
        Path(done_of(store)).touch()
        outcomes = results([rank for rank in ranks if rank.number not in out])
    epochs, members, left = zip(*outcomes, strict=True)
    assert set(map(tuple, members)) == {tuple(n for n in range(RANKS) if n not in out)}
    assert len(set(epochs)) == 1
    assert set(left) == {""}
    assert shared_files() <= before
