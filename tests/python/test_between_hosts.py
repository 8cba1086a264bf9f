"""Worlds whose ranks are on several hosts: processes of one machine that count as being on two."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import tokenyard
from tokenyard import InvalidArgument, NetworkOptions, Unsupported, World

PROGRAM = """
import os, sys, tokenyard
world = tokenyard.World.from_env(timeout=60, arena_bytes=1 << 16)
paths = world.network_paths()
mine = world.topology.peers[world.rank ^ 1], world.topology.peers[world.rank ^ 2]
line = [world.topology.hosts, *(peer.reach for peer in mine), len(paths), all(p.up for p in paths)]
world.barrier()
print(world.rank, *line, flush=True)
"""
EXPECTED = [f"{rank} 2 load_store put_signal 6 True" for rank in range(4)]
"""Four ranks, two on each of two hosts, with three connections to each rank of the other."""


def describe(world: World) -> tuple[list[str], list[int], int]:
    topology = world.topology
    gathered = world.all_gather(bytes([world.rank]))
    assert gathered == [bytes([rank]) for rank in range(world.size)]
    totals = world.network_metrics()
    assert sum(totals["paths_up_by_peer"]) == len(world.network_paths())
    text = tokenyard.prometheus_text(totals)
    assert f'tokenyard_network_paths_up{{rank="{world.rank}",peer="{world.rank}"}} 0' in text
    paths = len(world.network_paths())
    world.barrier()  # A rank that leaves takes its paths down.
    return [peer.reach for peer in topology.peers], topology.host_of, paths


def low_latency(world: World) -> str:
    with pytest.raises(Unsupported) as caught:
        tokenyard.LowLatency(world, experts=8, hidden=128, topk=2, tokens_max=4)
    world.barrier()
    return str(caught.value)


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def test_a_launch_has_hosts() -> None:
    """Three ranks on two hosts: the first has one more."""
    told = tokenyard.launch(
        describe, ranks=3, processes=True, hosts=2, arena_bytes=1 << 16, timeout=60
    )
    put, near = "put_signal", "load_store"
    assert told == [
        (["self", near, put], [0, 0, 1], 2),
        ([near, "self", put], [0, 0, 1], 2),
        ([put, put, "self"], [0, 0, 1], 4),
    ]


def test_an_exchange_that_stays_within_a_host_says_so() -> None:
    refusals = tokenyard.launch(
        low_latency, ranks=2, processes=True, hosts=2, arena_bytes=1 << 20, timeout=60
    )
    assert all("cannot load from and store to rank" in refusal for refusal in refusals)
    assert "another host" in refusals[0]


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        (NetworkOptions(connections=7), "network.connections"),
        (NetworkOptions(interfaces=["nosuchcard0"]), "network.interfaces"),
        (NetworkOptions(ports="low"), "network.ports"),
        (NetworkOptions(queues=0), "network.queues"),
        (NetworkOptions(queue_depth=65), "network.queue_depth"),
        (NetworkOptions(connections="2"), "network.connections"),
        (NetworkOptions(queues=1.5), "network.queues"),
        (NetworkOptions(queue_depth=-1), "network.queue_depth"),
        (NetworkOptions(timeout=-1.0), "network.timeout"),
    ],
)
def test_unusable_options_are_named(options: NetworkOptions, argument: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        World.connect("127.0.0.1", 1, rank=0, size=1, arena_bytes=1 << 16, network=options)
    assert caught.value.argument == argument


def test_unknown_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENYARD_NETWORK_NIC", "eth0")
    with pytest.raises(InvalidArgument, match="TOKENYARD_NETWORK_INTERFACES") as caught:
        World.connect("127.0.0.1", 1, rank=0, size=1, arena_bytes=1 << 16)
    assert caught.value.argument == "TOKENYARD_NETWORK_NIC"


def lines_of(processes: list[subprocess.Popen[str]], timeout: float) -> list[str]:
    try:
        said = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), said
    return sorted(line for text in said for line in text.splitlines() if line[:1].isdigit())


def test_from_env_finds_hosts_by_name(tmp_path: Path) -> None:
    variables = {
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TOKENYARD_SECRET": "a secret for tests only",
        "TOKENYARD_NETWORK_CONNECTIONS": "3",
    }
    processes = []
    for rank in range(4):
        own = {"RANK": str(rank), "TOKENYARD_HOST_NAME": f"host{rank // 2}"}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | variables | own,
            )
        )
    assert lines_of(processes, 120) == EXPECTED


def test_torchrun_starts_ranks_on_two_nodes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    port = free_port()
    processes = []
    for node in range(2):
        own = {"TOKENYARD_HOST_NAME": f"node{node}", "TOKENYARD_NETWORK_CONNECTIONS": "3"}
        command = ["-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}"]
        command += ["--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}"]
        processes.append(
            subprocess.Popen(
                [sys.executable, *command, program],
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | own,
            )
        )
    assert lines_of(processes, 240) == EXPECTED
