"""Links between processes that a test cuts, both ways or one way.

The processes share a network namespace of their own, where a rule per connection drops what one of
two processes sends to the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ranks import Rank

CLONE_NEWNET = 0x40000000
ESTABLISHED = "01"
PRIORITY = "10"
"""Of the rules that drop; that of the local addresses follows them."""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@dataclass(frozen=True)
class Links:
    """A network namespace."""

    name: str

    def enter(self) -> None:
        """Moves this process there. It has no other threads and no connections yet."""
        with Path(f"/var/run/netns/{self.name}").open("rb") as place:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(place.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")

    def cut(self, source: int, destination: int) -> None:
        """Drops what process `source` sends to process `destination` from now on."""
        theirs = {(there, here) for here, there in self._connections(destination)}
        for here, there in self._connections(source) & theirs:
            self._rule("add", here, there)

    def cut_between(self, one: Rank, other: Rank, ways: str) -> None:
        """Cuts what one rank sends to the other and, if it is "both ways", the other way, too."""
        here, there = one.process.pid, other.process.pid
        assert here is not None
        assert there is not None
        self.cut(here, there)
        if ways == "both ways":
            self.cut(there, here)

    def heal(self) -> None:
        """Drops nothing any more."""
        with contextlib.suppress(subprocess.CalledProcessError):  # None is left.
            while True:
                _ip("-n", self.name, "rule", "del", "pref", PRIORITY)

    def _rule(self, what: str, source_port: int, destination_port: int) -> None:
        ports = ["ipproto", "tcp", "sport", str(source_port), "dport", str(destination_port)]
        _ip("-n", self.name, "rule", what, "pref", PRIORITY, *ports, "blackhole")

    def _connections(self, process: int) -> set[tuple[int, int]]:
        """Returns the process's own and the other port of each of its TCP connections."""
        inodes = set()
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    inodes.add(target[len("socket:[") : -1])
        connections = set()
        for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == ESTABLISHED and fields[9] in inodes:
                here, there = (int(end.split(":")[1], 16) for end in fields[1:3])
                connections.add((here, there))
        return connections


@contextlib.contextmanager
def links_of_a_test() -> Iterator[Links]:
    """Makes a namespace; skips the test where the system does not allow it."""
    links = Links(f"tokenyard-links-{os.getpid()}")
    try:
        _ip("netns", "add", links.name)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespace here: {error}")
    try:
        _ip("-n", links.name, "link", "set", "lo", "up")
        # The rule of local addresses is the first; rules that drop must precede it.
        _ip("-n", links.name, "rule", "add", "pref", "100", "lookup", "local")
        _ip("-n", links.name, "rule", "del", "pref", "0")
        yield links
    finally:
        _ip("netns", "del", links.name)
