"""Hosts on one machine: network namespaces on one bridge, between which a test cuts links.

Ranks of one host share memory, others reach one another by the network alone.
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

CLONE_NEWNET = 0x40000000
CARD = "eth"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@dataclass(frozen=True)
class Hosts:
    """Hosts with equally many ranks each, numbered in order. Processes may be given it."""

    name: str
    hosts: int
    ranks_per_host: int
    network: str = "tcp"
    """Transport of the ranks, as their environment names it."""

    @property
    def size(self) -> int:
        return self.hosts * self.ranks_per_host

    def of(self, rank: int) -> int:
        return rank // self.ranks_per_host

    def ranks(self, host: int) -> list[int]:
        return [rank for rank in range(self.size) if self.of(rank) == host]

    @staticmethod
    def address(host: int) -> str:
        return f"10.78.0.{host + 1}"

    def enter(self, rank: int) -> dict[str, str]:
        """Moves this process, which has no connections yet, to the rank's host; returns the options
        of a job there."""
        host = self.of(rank)
        with Path(f"/var/run/netns/{self._space(host)}").open("rb") as place:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(place.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        os.environ["TOKENYARD_NETWORK"] = self.network
        return {"address": self.address(host), "host": f"host{host}"}

    def cut(self, source: int, destination: int) -> None:
        """Drops what host `source` sends to host `destination`, by a firewall."""
        rules = "add table inet cut; "
        rules += "add chain inet cut out { type filter hook output priority 0; }; "
        rules += f"add rule inet cut out ip daddr {self.address(destination)} drop"
        self._in(source, "nft", rules)

    def heal(self, source: int) -> None:
        """Drops nothing any more of what a host sends."""
        self._in(source, "nft", "delete table inet cut")

    def take_down(self, host: int) -> None:
        """Pulls a host's cable."""
        _run("ip", "-n", self._hub, "link", "set", f"port{host}", "down")

    def slow_down(self, host: int, megabits: float) -> None:
        """Lets a host send no more than so many megabits per second."""
        shape = f"root tbf rate {int(megabits * 1000)}kbit burst 16kb latency 200ms"
        self._in(host, "tc", "qdisc", "add", "dev", CARD, *shape.split())

    def make(self) -> None:
        _run("ip", "netns", "add", self._hub)
        _run("ip", "-n", self._hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self._hub, "link", "set", "bridge", "up")
        for host in range(self.hosts):
            space, port = self._space(host), f"port{host}"
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "set", "lo", "up")
            veth = f"link add {port} type veth peer name {CARD} netns {space}"
            _run("ip", "-n", self._hub, *veth.split())
            _run("ip", "-n", self._hub, *f"link set {port} master bridge up".split())
            _run("ip", "-n", space, "addr", "add", f"{self.address(host)}/24", "dev", CARD)
            _run("ip", "-n", space, "link", "set", CARD, "up")

    def remove(self) -> None:
        for space in [*map(self._space, range(self.hosts)), self._hub]:
            with contextlib.suppress(subprocess.CalledProcessError):  # It was never made.
                _run("ip", "netns", "del", space)

    def _in(self, host: int, *command: str) -> None:
        _run("ip", "netns", "exec", self._space(host), *command)

    def _space(self, host: int) -> str:
        return f"{self.name}-{host}"

    @property
    def _hub(self) -> str:
        return f"{self.name}-hub"


class NamedHosts(Hosts):
    """Hosts by name alone, whose ranks reach one another through shared memory."""

    def enter(self, rank: int) -> dict[str, str]:
        os.environ["TOKENYARD_NETWORK"] = self.network
        os.environ["TOKENYARD_NETWORK_INTERFACES"] = "shm"
        return {"address": "127.0.0.1", "host": f"host{self.of(rank)}"}


@contextlib.contextmanager
def hosts_of_a_test(hosts: int, ranks_per_host: int, network: str = "tcp") -> Iterator[Hosts]:
    """Makes hosts; skips the test where the system does not allow it."""
    made = Hosts(f"tokenyard-hosts-{os.getpid()}", hosts, ranks_per_host, network)
    try:
        try:
            made.make()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces, firewall or rates here: {error}")
        yield made
    finally:
        made.remove()
