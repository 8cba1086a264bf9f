"""Plays a scene: ours beside one peer, in one process per GPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Place:
    """Arguments of a rank's process."""

    kind: str
    """throughput or low_latency"""
    peer: str
    """The module in this folder that drives the peer."""
    site: str
    """The folder that contains the peer's package."""
    shape: dict[str, int]
    """tokens, hidden, topk, experts"""
    values: list[int]
    """Numbers of multiprocessors; for low latency, of tokens."""
    ranks: int
    rank: int = 0
    ports: tuple[int, int] = (0, 0)


class SceneError(Exception):
    """A scene failed or took too long."""


def play(place: Place, seconds: float, environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yields rows of a scene. Raises SceneError if a rank fails, or the scene takes too long."""
    place = replace(place, ports=tuple(free_ports(2)))
    ranks = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("rank.py")), told(place, rank)],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE if rank == 0 else sys.stderr,
            text=True,
        )
        for rank in range(place.ranks)
    ]
    watch = Watch(ranks, seconds)
    try:
        assert ranks[0].stdout is not None
        for line in ranks[0].stdout:
            if line.startswith('{"case"'):
                yield json.loads(line)
            else:
                print(line, end="", file=sys.stderr)
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            raise SceneError(f"{place.kind} beside {place.peer}: {watch.why} (exit codes {codes})")
    finally:
        watch.stop()


def told(place: Place, rank: int) -> str:
    return json.dumps(asdict(replace(place, rank=rank)))


class Watch:
    """Kills all ranks at the time limit, or soon after one has failed, for which others wait."""

    GRACE = 3.0
    """Seconds in which the other ranks may report errors of their own."""

    def __init__(self, ranks: list[subprocess.Popen[str]], seconds: float) -> None:
        self.why = "a rank failed"
        self._ranks = ranks
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(seconds,))
        self._thread.start()

    def _look(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        failed = False
        while not self._over.wait(0.1) and time.monotonic() < end:
            if not failed and any(rank.poll() for rank in self._ranks):
                failed = True
                end = min(end, time.monotonic() + self.GRACE)
        if not failed and not self._over.is_set():
            self.why = f"not over after {seconds:.0f} s"
        for rank in self._ranks:
            rank.kill()

    def stop(self) -> None:
        """Kills all remaining ranks."""
        self._over.set()
        self._thread.join()


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
