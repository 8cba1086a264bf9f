"""Lines on stderr about what changes in a job, and the choice of their level."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from programs import run_python

import tokenyard

PROGRAM = """
import os, signal
import tokenyard

def fall(world):
    world.barrier("all are there")
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            world.barrier("until it falls")
    except tokenyard.PeerLost as error:
        world.job.recover()
        world.job.world(arena_bytes=1 << 20, compact=True).barrier("without it")

if __name__ == "__main__":
    tokenyard.launch(fall, ranks=3, processes=True, timeout=60, on_death="continue")
"""
LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} tokenyard (debug|info|warning)"
    r" rank (\d+) epoch (\d+): (.+)"
)


MASKS = """
import ml_dtypes
import numpy as np
import tokenyard

SIZES = dict(experts=2, hidden=128, topk=1, tokens_max=4)

def exchange(low_latency, timeout=None):
    x, ids = np.ones((4, 128), ml_dtypes.bfloat16), np.array([[0], [1], [0], [1]])
    got = low_latency.dispatch(x, ids, rows="bf16", timeout=timeout)
    low_latency.combine(got.x, got, np.ones((4, 1), np.float32), timeout=timeout)
    low_latency.wait()

def skip(world):
    low_latency = tokenyard.LowLatency(world, **SIZES)
    exchange(low_latency)
    if world.rank == 0:
        exchange(low_latency, timeout=0.05)
        low_latency.check()  # Once per mask.
        low_latency.update_mask(1, False)
        low_latency.check()
    world.barrier("rank 1 has made one call less")

if __name__ == "__main__":
    tokenyard.launch(skip, ranks=2, processes=True, timeout=60)
"""


def lines_of(level: str | None, folder: Path, program: str = PROGRAM) -> list[tuple[str, ...]]:
    """Returns level, rank, epoch and text of each line that the ranks of a launch write."""
    path = folder / "program.py"
    path.write_text(program)
    environment = {key: text for key, text in os.environ.items() if key != "TOKENYARD_LOG"}
    if level is not None:
        environment["TOKENYARD_LOG"] = level
    done = run_python(path, env=environment)
    assert done.returncode == 0, done.stderr
    matches = [LINE.fullmatch(line) for line in done.stderr.splitlines()]
    assert all(matches), done.stderr
    return [match.groups() for match in matches if match]


def test_a_death_is_a_warning_on_every_survivor(tmp_path: Path) -> None:
    lines = lines_of(None, tmp_path)
    assert {level for level, *_ in lines} == {"warning"}
    for rank in ("0", "2"):
        assert ("warning", rank, "2", "the members go on without rank 1") in lines
    # A survivor that hears of the death from the other first parts with the connection itself.
    ended = [(who, text) for _, who, _, text in lines if text.startswith("the connection to")]
    assert ended
    assert all(text.startswith("the connection to rank 1 ended: ") for _, text in ended)
    assert {who for who, _ in ended} <= {"0", "2"}


def test_more_is_told_to_whom_it_may_concern(tmp_path: Path) -> None:
    lines = lines_of("info", tmp_path)
    for rank in ("0", "1", "2"):
        assert ("info", rank, "1", "the epoch begins; its members: 0, 1, 2") in lines
    assert ("info", "0", "2", "the epoch begins; its members: 0, 2") in lines
    assert any("connected with rank 0 at 127.0.0.1:" in text for *_, text in lines)
    levels = {level for level, *_ in lines_of("debug", tmp_path)}
    assert levels == {"debug", "info", "warning"}


def test_a_mask_of_low_latency_is_told_once(tmp_path: Path) -> None:
    lines = [line for line in lines_of("info", tmp_path, MASKS) if "low latency" in line[3]]
    masked, unmasked = lines
    assert masked[:3] == ("warning", "0", "1")
    assert masked[3].startswith("low latency masks rank 1: ")
    assert unmasked == ("info", "0", "1", "low latency masks rank 1 no more")


def test_an_unknown_level_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENYARD_LOG", "verbose")
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        tokenyard.launch(len, ranks=2, processes=True, timeout=60)
    assert caught.value.argument == "TOKENYARD_LOG"
    assert caught.value.expected == "warning, info or debug"
    with pytest.raises(tokenyard.InvalidArgument, match="TOKENYARD_LOG"):
        tokenyard.Collectives.alone(rank=0, size=2)
