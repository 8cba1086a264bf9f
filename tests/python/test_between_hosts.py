"""Worlds whose ranks are on several hosts: processes of one machine that count as being on two."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from ranks import world_alone

import tokenyard
from tokenyard import InvalidArgument, NetworkOptions, Unsupported, World

PROGRAM = """
import os, sys, tokenyard
world = tokenyard.World.from_env(timeout=60, arena_bytes=1 << 16)
paths = world.network_paths()
mine = world.topology.peers[world.rank ^ 1], world.topology.peers[world.rank ^ 2]
line = [world.topology.hosts, *(peer.reach for peer in mine), len(paths), all(p.up for p in paths)]
world.barrier()
text = " ".join(map(str, (world.rank, *line)))
print(f"{text}\\n", end="", flush=True)  # In one write: other ranks share the stream.
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


SIZES = dict(experts=8, hidden=128, topk=2, tokens_max=4)


def low_latency(world: World) -> tuple[list[str], list[str], list[int]]:
    """Batches of every row format, with weights in the dispatch or in the combine, and hooks."""
    exchange = tokenyard.LowLatency(world, **SIZES, totals=True)
    x = np.full((4, 128), 1 + world.rank, ml_dtypes.bfloat16)
    topk_idx = np.array([[0, 7], [3, 4], [-1, 2], [5, 6]])
    halves = np.full((4, 2), 0.5, np.float32)
    wrong = []
    for batch, rows in enumerate(["bf16", "fp8", "fp8_rounded", "fp8_ue8m0"] * 2):
        early, hook = batch % 3 == world.rank, batch % 2 == 1
        received = exchange.dispatch(
            x, topk_idx, halves if early else None, rows=rows, return_recv_hook=hook
        )
        if hook:
            received.hook()
        assert (
            received.counts.sum()
            == world.size * (topk_idx // (8 // world.size) == world.rank).sum()
        )
        y = exchange.combine_buffer(received)
        y[:] = 1 + world.rank
        home = exchange.combine(y, received, None if early else halves, return_recv_hook=hook)
        if hook:
            home.hook()
        exchange.wait()
        held = 1 + topk_idx // (8 // world.size)
        expected = np.where(topk_idx < 0, 0, held).sum(1, keepdims=True) / 2
        if not (np.asarray(home.x, np.float32) == expected).all():
            wrong.append(f"batch {batch}, rows {rows}")
    assert exchange.failed_ranks() == []
    paths = exchange.paths
    waited = exchange.metrics()["wait_cycles_by_peer"]
    exchange.close()
    return paths, wrong, [rank for rank, cycles in enumerate(waited) if cycles == 0]


def only_put(world: World) -> str:
    with pytest.raises(Unsupported) as caught:
        tokenyard.LowLatency(world, **SIZES, paths="put")
    world.barrier()
    return str(caught.value)


def lose_a_host(world: World) -> tuple[bool, list[int]]:
    """The ranks of the second host are killed; the others' sums lack them, and nothing else."""
    exchange = tokenyard.LowLatency(world, **SIZES)
    x = np.ones((4, 128), ml_dtypes.bfloat16)
    topk_idx = np.array([[0, 7], [3, 4], [1, 2], [5, 6]])
    halves = np.full((4, 2), 0.5, np.float32)

    def step() -> tuple[list[float], list[int]]:
        rows = exchange.dispatch(x, topk_idx, halves, rows="bf16", timeout=20)
        y = exchange.combine_buffer(rows)
        y[:] = 1
        home = exchange.combine(y, rows, timeout=20)
        exchange.wait()
        return home.x[:, 0].astype(float).tolist(), home.lost.tolist()

    assert step() == ([1.0] * 4, [0] * 4)
    world.barrier()
    if world.rank >= 2:
        os.kill(os.getpid(), signal.SIGKILL)
    first, second = step(), step()
    masked = sorted(failed.rank for failed in exchange.failed_ranks())
    return first == second == ([0.5, 0.5, 1.0, 0.0], [1, 1, 0, 2]), masked


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


@pytest.mark.parametrize("processes", [True, False])
def test_low_latency_between_hosts(processes: bool) -> None:
    told = tokenyard.launch(
        low_latency, ranks=4, processes=processes, hosts=2, arena_bytes=1 << 24, timeout=60
    )
    near, put = "load_store", "put"
    assert told == [
        (["self", near, put, put], [], []),
        ([near, "self", put, put], [], []),
        ([put, put, "self", near], [], []),
        ([put, put, near, "self"], [], []),
    ]


def test_a_host_that_dies_is_masked() -> None:
    told = tokenyard.launch(
        lose_a_host,
        ranks=4,
        processes=True,
        hosts=2,
        arena_bytes=1 << 24,
        timeout=60,
        on_death="continue",
    )
    assert told[:2] == [(True, [2, 3]), (True, [2, 3])]


def test_memory_of_messages_is_told_before_they_are() -> None:
    near = tokenyard.LowLatency.memory(**SIZES, ranks=4)
    far = tokenyard.LowLatency.memory(**SIZES, ranks=4, put_ranks=2)
    assert near.network_bytes == 0 < far.network_bytes
    assert near.arena_bytes < far.arena_bytes
    with pytest.raises(InvalidArgument, match="put_ranks"):
        tokenyard.LowLatency.memory(**SIZES, ranks=4, put_ranks=4)


def test_put_needs_a_network_within_a_host() -> None:
    refusals = tokenyard.launch(only_put, ranks=2, arena_bytes=1 << 20, timeout=60)
    assert all("host_name of its own" in refusal for refusal in refusals)


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
        (NetworkOptions(gpu_memory=1), "network.gpu_memory"),
        (NetworkOptions(gpu_memory=True), "network.gpu_memory"),
    ],
)
def test_unusable_options_are_named(options: NetworkOptions, argument: str) -> None:
    with (
        pytest.raises(InvalidArgument) as caught,
        world_alone(arena_bytes=1 << 16, network=options),
    ):
        pass
    assert caught.value.argument == argument


def test_unknown_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENYARD_NETWORK_NIC", "eth0")
    with (
        pytest.raises(InvalidArgument, match="TOKENYARD_NETWORK_INTERFACES") as caught,
        world_alone(arena_bytes=1 << 16),
    ):
        pass
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
