"""Networks fail, and new hosts come: the ranks learn why, and go on in a new world or a full one.

Hosts are namespaces, and the network is TCP between them.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hosts import Hosts, hosts_of_a_test
from ranks import Rank, file_store, ranks_of, results, results_of
from test_trouble import await_file, done_of, shared_files
from test_trouble_hosts import PATIENT_S, SECRET, Exchanges, enter, go_on, world_of

import _tokenyard
import tokenyard
from tokenyard import NetworkOptions


def end_the_networks_thread() -> None:
    """Takes from the thread of this process's network what it polls, as a fault of the system."""
    with Path(os.devnull).open("rb") as nothing:
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if str(descriptor.readlink()) == "anon_inode:[eventpoll]" and polls_sockets_alone(
                    descriptor.name
                ):
                    os.dup2(nothing.fileno(), int(descriptor.name), inheritable=False)
                    return
    raise AssertionError("no network here")


def polls_sockets_alone(descriptor: str) -> bool:
    """Other threads of the library wait for their own events, too."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="utf-8").splitlines()
    polled = [line.split()[1] for line in lines if line.startswith("tfd:")]
    targets = [str(Path(f"/proc/self/fd/{target}").readlink()) for target in polled]
    return bool(targets) and all(target.startswith("socket:") for target in targets)


def fault_of(exchanges: Exchanges) -> tokenyard.NetworkFault:
    try:
        while True:
            exchanges.dispatch()
    except tokenyard.NetworkFault as fault:
        return fault


def go_on_in_a_new_world(job: tokenyard.Job) -> None:
    exchanges = Exchanges(job, world_of(job, PATIENT_S))
    for _ in range(3):
        exchanges.check()
    exchanges.world.barrier("all have gone on")
    exchanges.close()


def work_until_a_thread_ends_in_low_latency(
    say: Callable[[Any], None], rank: int, size: int, hosts: Hosts, store: str, failing: int
) -> list[int]:
    job = enter(rank, hosts, store)
    exchanges = Exchanges(job, world_of(job, PATIENT_S))
    exchanges.check()
    exchanges.world.barrier("all have exchanged")

    def end_amid_a_call() -> None:
        time.sleep(0.5)  # By now the call has begun, and it does not end without the others.
        end_the_networks_thread()
        Path(done_of(store)).touch()

    if rank == failing:
        ending = threading.Thread(target=end_amid_a_call)
        ending.start()
        with pytest.raises(tokenyard.NetworkFault, match="epoll_wait"):
            exchanges.serve_until_masked()
        ending.join()
    else:
        await_file(done_of(store))
        exchanges.serve_until_masked()
    masked = [failed.rank for failed in exchanges.low_latency.failed_ranks()]
    exchanges.close()
    go_on_in_a_new_world(job)
    job.close()
    return masked


def test_the_thread_of_a_network_ends_amid_low_latency(tmp_path: Path) -> None:
    """The others mask its rank, and go on with it in a new world."""
    failing = 1
    with (
        hosts_of_a_test(3, 1) as hosts,
        ranks_of(
            work_until_a_thread_ends_in_low_latency,
            hosts.size,
            hosts,
            file_store(tmp_path),
            failing,
        ) as ranks,
    ):
        told = results(ranks)
    assert told[0] == told[2] == [failing]


def work_until_a_thread_ends(
    say: Callable[[Any], None], rank: int, size: int, hosts: Hosts, store: str, failing: int
) -> tuple[str, int, str]:
    job = enter(rank, hosts, store)
    exchanges = Exchanges(job, world_of(job, PATIENT_S))
    exchanges.check()
    exchanges.world.barrier("all have exchanged")
    if rank == failing:
        end_the_networks_thread()
    fault = fault_of(exchanges)
    assert fault.rank == rank
    # Low latency goes on without that rank.
    if rank == failing:
        with pytest.raises(tokenyard.NetworkFault, match="epoll_wait"):
            exchanges.serve()
    else:
        exchanges.serve_until_masked()
        assert [failed.rank for failed in exchanges.low_latency.failed_ranks()] == [failing]
    exchanges.close()
    # So does everything in a new world.
    go_on_in_a_new_world(job)
    job.close()
    return fault.check, fault.peer, fault.cause


def test_the_thread_of_a_network_ends(tmp_path: Path) -> None:
    """Its rank says why, and the others learn it through the job."""
    failing = 1
    with (
        hosts_of_a_test(3, 1) as hosts,
        ranks_of(
            work_until_a_thread_ends, hosts.size, hosts, file_store(tmp_path), failing
        ) as ranks,
    ):
        for check, peer, cause in results(ranks):
            assert (check, peer) == ("thread", failing)
            assert cause.startswith("epoll_wait failed"), cause


def stay(
    say: Callable[[Any], None],
    rank: int,
    size: int,
    hosts: Hosts,
    store: str,
    phase: str,
    one_by_one: bool,
) -> int:
    job = enter(rank, hosts, store)
    exchanges = Exchanges(job, world_of(job, PATIENT_S))
    exchanges.check()
    say("at work")
    exchanges.repeat(phase)
    if one_by_one:
        go_on(job, exchanges, hosts.ranks(0))
        say("without it")
        for lost in hosts.ranks(1):
            job.replace(lost)
    else:
        job.recover(wait_for_replacements=True)
    return exchange_in_full(job, exchanges)


def come(
    say: Callable[[Any], None],
    rank: int,
    size: int,
    hosts: Hosts,
    store: str,
    one_by_one: bool,
) -> int:
    job = enter(rank, hosts, store, join=True)
    if not one_by_one:
        job.recover(wait_for_replacements=True)
    return exchange_in_full(job, Exchanges(job, world_of(job, PATIENT_S)))


def exchange_in_full(job: tokenyard.Job, exchanges: Exchanges) -> int:
    exchanges.step = 1000
    for _ in range(3):
        exchanges.check()
    exchanges.world.barrier("all have gone on")
    epoch = job.epoch()
    exchanges.close()
    job.close()
    return epoch


@pytest.mark.parametrize(
    ("phase", "one_by_one"), [("dispatch", False), ("serve", True)], ids=["together", "one by one"]
)
def test_a_new_host_in_a_dead_ones_place(phase: str, one_by_one: bool, tmp_path: Path) -> None:
    """New processes take the places of a host's; the objects of the others go on with them."""
    before = shared_files()
    store = file_store(tmp_path)
    with (
        hosts_of_a_test(2, 2) as hosts,
        ranks_of(stay, hosts.size, hosts, store, phase, one_by_one) as ranks,
    ):
        for rank in ranks:
            rank.hears("at work")
        for lost in hosts.ranks(1):
            ranks[lost].kill()
        if one_by_one:
            for rank in hosts.ranks(0):
                ranks[rank].hears("without it")
        newcomers = [
            Rank(come, lost, hosts.size, hosts, store, one_by_one) for lost in hosts.ranks(1)
        ]
        try:
            epochs = results([*(ranks[rank] for rank in hosts.ranks(0)), *newcomers])
        finally:
            for newcomer in newcomers:
                newcomer.end()
        assert len(set(epochs)) == 1
    assert shared_files() <= before


def await_others(store: str, rank: int, size: int) -> None:
    """Stays until all ranks have come here: those that are left make a world of their own."""
    Path(f"{done_of(store)}-{rank}").touch()
    for other in range(size):
        await_file(f"{done_of(store)}-{other}")


def connect_with_few_descriptors(
    say: Callable[[Any], None], rank: int, size: int, store: str, poor: int
) -> str:
    with tokenyard.connect(
        store, secret=SECRET, rank=rank, size=size, timeout=PATIENT_S, host=f"host{rank}"
    ) as job:
        if rank == poor:
            open_now = sum(1 for _ in Path("/proc/self/fd").iterdir())
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 8, hard))
        with pytest.raises(tokenyard.InvalidArgument) as raised:
            job.world(arena_bytes=1 << 20, network=NetworkOptions(connections=6))
        await_others(store, rank, size)
        return str(raised.value)


def test_too_few_descriptors_are_named_by_all(tmp_path: Path) -> None:
    poor = 1
    told = results_of(connect_with_few_descriptors, 3, file_store(tmp_path), poor)
    assert len(set(told)) == 1
    assert f"ulimit -n on rank {poor}: expected at least" in told[0]
    assert "connections with 2 ranks of other hosts" in told[0]


def connect_by(say: Callable[[Any], None], rank: int, size: int, store: str, other: str) -> str:
    """All ranks but the last one use TCP."""
    network = NetworkOptions(transport=other if rank == size - 1 else "tcp")
    with tokenyard.connect(
        store, secret=SECRET, rank=rank, size=size, timeout=PATIENT_S, host=f"host{rank}"
    ) as job:
        with pytest.raises((tokenyard.InvalidArgument, tokenyard.Unsupported)) as raised:
            job.world(arena_bytes=1 << 20, network=network)
        await_others(store, rank, size)
        return str(raised.value)


def told_of(transport: str, tmp_path: Path) -> str:
    """Returns the sentence that all ranks raise if the last one uses this transport."""
    told = results_of(connect_by, 3, file_store(tmp_path), transport)
    assert len(set(told)) == 1, told
    assert "rank 2" in told[0]
    return told[0]


def test_different_transports_are_named_by_all(tmp_path: Path) -> None:
    module = Path(_tokenyard.__file__)
    plugin = module.parents[2] / "src" / "libfabric" / "libtokenyard_libfabric.so"
    if not plugin.exists():
        pytest.skip("the plug-in of libfabric is not built here")
    told = told_of(f"{plugin}:tcp;ofi_rxm", tmp_path)
    assert "transport" in told
    assert "tcp, as on rank 0" in told


@pytest.mark.parametrize("transport", ["/nowhere/libtokenyard_libfabric.so", "ibgda:nosuchcard0"])
def test_a_transport_that_one_rank_lacks_is_named_by_all(transport: str, tmp_path: Path) -> None:
    told_of(transport, tmp_path)
