"""Ranks and hosts fail in the midst of exchanges over libfabric: its TCP, between namespaces, and
shared memory, between processes that count as hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hosts import Hosts, NamedHosts, hosts_of_a_test
from ranks import Rank
from test_trouble_hosts import blow_falls, late_puts_come

import _tokenyard

TCP, MEMORY = "tcp;ofi_rxm", "shm"


@contextmanager
def hosts_over(provider: str, hosts: int, ranks_per_host: int) -> Iterator[Hosts]:
    """Makes hosts between which a provider of libfabric carries everything."""
    module = Path(_tokenyard.__file__)
    plugin = module.parents[2] / "src" / "libfabric" / "libtokenyard_libfabric.so"
    if not plugin.exists():
        pytest.skip("the plug-in of libfabric is not built here")
    network = f"{plugin}:{provider}"
    if provider == MEMORY:
        yield NamedHosts("", hosts, ranks_per_host, network)
    else:
        with hosts_of_a_test(hosts, ranks_per_host, network) as made:
            yield made


@pytest.mark.parametrize(
    ("provider", "phase"),
    [
        (TCP, "dispatch"),
        (TCP, "serve"),
        (MEMORY, "dispatch"),
        (MEMORY, "combine"),
        (MEMORY, "serve"),
    ],
)
def test_a_killed_rank(provider: str, phase: str, tmp_path: Path) -> None:
    with hosts_over(provider, 2, 2) as hosts:
        blow_falls(tmp_path, hosts, [3], phase, lambda ranks: ranks[3].kill())


@pytest.mark.parametrize("provider", [TCP, MEMORY])
def test_a_stopped_rank(provider: str, tmp_path: Path) -> None:
    def wakes(ranks: list[Rank]) -> None:
        ranks[3].wake()
        assert ranks[3].result() == "out of touch"

    with hosts_over(provider, 2, 2) as hosts:
        blow_falls(tmp_path, hosts, [3], "serve", lambda ranks: ranks[3].stop(), recovered=wakes)


@pytest.mark.parametrize(("provider", "phase"), [(TCP, "serve"), (MEMORY, "dispatch")])
def test_a_whole_host_is_killed(provider: str, phase: str, tmp_path: Path) -> None:
    with hosts_over(provider, 3, 2) as hosts:
        blow_falls(
            tmp_path, hosts, [2, 3], phase, lambda ranks: [ranks[rank].kill() for rank in (2, 3)]
        )


@pytest.mark.parametrize("phase", ["combine", "serve"])
def test_a_host_is_cut_off(phase: str, tmp_path: Path) -> None:
    with hosts_over(TCP, 3, 1) as hosts:
        blow_falls(tmp_path, hosts, [1], phase, lambda ranks: hosts.take_down(1))


def test_late_puts_of_an_old_epoch(tmp_path: Path) -> None:
    with hosts_over(TCP, 3, 1) as hosts:
        late_puts_come(tmp_path, hosts, "serve")


def test_a_killed_rank_with_a_slow_rail(tmp_path: Path) -> None:
    def kill(ranks: list[Rank]) -> None:
        hosts.slow_down(1, 2.0)
        time.sleep(1)  # Its queues fill.
        ranks[2].kill()

    with hosts_over(TCP, 3, 1) as hosts:
        blow_falls(tmp_path, hosts, [2], "serve", kill)
