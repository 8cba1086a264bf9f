"""The doctor's times of a job's network, and what it tells where the network does not work."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest
from links import links_of_a_test

import tokenyard
from tokenyard.peer_times import text_of

RANKS = 3


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def doctors(
    *arguments: str,
    special: dict[int, dict[str, str]] | None = None,
    before: dict[int, Callable[[], None]] | None = None,
) -> list[subprocess.CompletedProcess[str]]:
    """Runs the doctor on each rank, on a host of its own; `special` and `before` are of a rank."""
    variables = {
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TOKENYARD_SECRET": "a secret for tests only",
    }
    processes = []
    for rank in range(RANKS):
        own = {"RANK": str(rank), "TOKENYARD_HOST_NAME": f"host{rank}"}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "tokenyard", "doctor", "--peers", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | variables | own | (special or {}).get(rank, {}),
                preexec_fn=(before or {}).get(rank),
            )
        )
    done = []
    try:
        for process in processes:
            said, complained = process.communicate(timeout=150)
            done.append(
                subprocess.CompletedProcess(
                    process.args, process.returncode, said, complained.strip()
                )
            )
    finally:
        for process in processes:
            process.kill()
    return done


def test_every_pair_of_ranks_is_timed() -> None:
    done = doctors("--json", "--timeout", "60")
    assert [each.returncode for each in done] == [0] * RANKS, done
    assert [each.stdout for each in done[1:]] == ["", ""]
    told = json.loads(done[0].stdout)
    assert (told["hosts"], told["rails"]) == ([[0], [1], [2]], [[0, 1, 2]])
    rows = told["peers"]
    pairs = [(row["rank"], row["peer"]) for row in rows]
    assert pairs == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    for row in rows:
        assert row["error"] == ""
        assert "proxy/tcp" in row["how"]
        assert min(row["round_trip_us"], row["bytes_per_second"]) > 0


def test_hosts_and_rails_are_listed() -> None:
    places = {"hosts": [[0, 1], [2]], "rails": [[0, 2], [1]]}
    assert text_of(places) == ("hosts 0: ranks 0, 1; 1: ranks 2\nrails 0: ranks 0, 2; 1: ranks 1")


def test_a_way_with_a_smaller_mtu_is_told() -> None:
    """Short packets pass and long ones vanish, without a word."""
    with links_of_a_test() as links:
        rules = "add table inet t; add chain inet t in { type filter hook input priority 0; };"
        rules += "add rule inet t in meta length gt 9000 drop"
        command = ["ip", "netns", "exec", links.name, "nft", rules]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("no nftables here")
        done = doctors("--json", "--timeout", "60", before=dict.fromkeys(range(RANKS), links.enter))
    assert [each.returncode for each in done] == [1] * RANKS, done
    rows = json.loads(done[0].stdout)["peers"]
    assert len(rows) == RANKS * (RANKS - 1)
    assert all(row["error"] for row in rows), rows
    assert any("smaller MTU" in row["error"] for row in rows), rows


def test_a_world_within_a_host_has_no_network_to_time() -> None:
    assert tokenyard.launch(tokenyard.World.time_peers, ranks=2, arena_bytes=1 << 16) == [[], []]
