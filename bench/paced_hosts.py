"""Measures dispatch and combine between hosts whose links are paced, beside plain sockets.

    python bench/paced_hosts.py [--hosts 2 3 4] [--rate 10] [--tokens 256] [--smoke] [--out FILE]

A host is a network namespace; its ranks are processes with CPU tensors. Its card sends no more than
--rate megabytes per second (tbf), at which the network is the limit and not the cores: --rate 0
paces nothing. Sums are checked before anything is timed. Then sockets, as many as Tokenyard has
between two ranks, carry the same rows through the same cards: rows only, no headers, ids or counts.
Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import ml_dtypes
import numpy as np
from peers.environment import environment  # In this folder, as below.
from peers.results_file import write_results

import tokenyard

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/python"))
from hosts import Hosts  # noqa: E402

PORT = 29517
CONNECTIONS = 3
LONGEST_S = 600.0
"""Seconds after which a run of ranks is ended."""


@dataclass(frozen=True)
class Shape:
    """A run's hosts and tokens."""

    name: str
    """Of its network namespaces."""
    hosts: int
    ranks_per_host: int
    tokens: int
    hidden: int
    topk: int
    experts: int
    calls: int
    megabytes_per_s: float
    """Of each host's card; 0: not paced."""

    @property
    def size(self) -> int:
        return self.hosts * self.ranks_per_host

    def places(self) -> Hosts:
        return Hosts(self.name, self.hosts, self.ranks_per_host)

    def experts_of_tokens(self, rank: int) -> np.ndarray:
        """Returns the experts of a rank's tokens: [tokens, topk], distinct, all as likely."""
        draw = np.random.default_rng(rank).random((self.tokens, self.experts))
        return np.ascontiguousarray(np.argsort(draw, axis=1)[:, : self.topk])

    def ranks_of_tokens(self, rank: int) -> np.ndarray:
        """Returns which ranks each of a rank's tokens goes to: [tokens, ranks]."""
        of_expert = self.experts_of_tokens(rank) // (self.experts // self.size)
        return (of_expert[:, :, None] == np.arange(self.size)).any(axis=1)

    def rows_between_hosts(self) -> np.ndarray:
        """Returns how many tokens each rank has for each host: [ranks, hosts], its own host 0.

        A token crosses once to a host, however many of the host's ranks want it.
        """
        rows = np.zeros((self.size, self.hosts), np.int64)
        for rank in range(self.size):
            wanted = self.ranks_of_tokens(rank)
            by_host = wanted.reshape(-1, self.hosts, self.ranks_per_host).any(axis=2).sum(axis=0)
            by_host[rank // self.ranks_per_host] = 0
            rows[rank] = by_host
        return rows


class RawSockets:
    """Sockets between this rank and its rail peers: the ranks of its place on other hosts."""

    def __init__(self, shape: Shape, rank: int, world: tokenyard.World) -> None:
        host, place = divmod(rank, shape.ranks_per_host)
        listening = socket.create_server((Hosts.address(host), 0), backlog=64)
        port = listening.getsockname()[1]
        ports = [
            int.from_bytes(of_rank, "big") for of_rank in world.all_gather(port.to_bytes(4, "big"))
        ]
        self.of_host: dict[int, list[socket.socket]] = {
            peer: [
                socket.create_connection(
                    (Hosts.address(peer), ports[peer * shape.ranks_per_host + place]), 30
                )
                for _ in range(CONNECTIONS)
            ]
            for peer in range(host)
        }
        for made in [one for sockets in self.of_host.values() for one in sockets]:
            made.sendall(bytes([host]))
        listening.settimeout(30)
        for _ in range(CONNECTIONS * (shape.hosts - 1 - host)):
            accepted, _ = listening.accept()
            self.of_host.setdefault(accepted.recv(1)[0], []).append(accepted)
        listening.close()

    def exchange(self, sent: dict[int, int], received: dict[int, int]) -> None:
        """Sends and receives so many bytes to and from each host at once."""
        threads = [
            threading.Thread(target=move, args=(sockets, counts[host]))
            for move, counts in ((send_all, sent), (receive_all, received))
            for host, sockets in self.of_host.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def close(self) -> None:
        for one in [one for sockets in self.of_host.values() for one in sockets]:
            one.close()


def shares(total: int) -> list[int]:
    return [total // CONNECTIONS + (at < total % CONNECTIONS) for at in range(CONNECTIONS)]


def send_all(sockets: list[socket.socket], total: int) -> None:
    left = dict(zip(sockets, (memoryview(bytes(share)) for share in shares(total)), strict=True))
    for one in sockets:
        one.setblocking(False)
    while left := {one: rest for one, rest in left.items() if rest}:
        for one in select.select([], list(left), [], 30)[1]:
            left[one] = left[one][one.send(left[one][: 1 << 20]) :]


def receive_all(sockets: list[socket.socket], total: int) -> None:
    left = dict(zip(sockets, shares(total), strict=True))
    region = bytearray(1 << 20)
    while left := {one: rest for one, rest in left.items() if rest}:
        for one in select.select(list(left), [], [], 30)[0]:
            moved = one.recv_into(region, min(left[one], len(region)))
            if moved == 0:
                raise ConnectionError("raw sockets: a connection has ended")
            left[one] -= moved


def slowest(world: tokenyard.World, calls: int, call: Callable[[], None]) -> list[float]:
    """Returns the microseconds of each call on its slowest rank, without the first."""
    times = []
    for _ in range(calls + 1):
        world.barrier("bench: before a call")
        begin = time.perf_counter_ns()
        call()
        mine = time.perf_counter_ns() - begin
        of_ranks = world.all_gather(mine.to_bytes(8, "big"))
        times.append(max(int.from_bytes(one, "big") for one in of_ranks) / 1e3)
    return times[1:]


def run_rank(shape: Shape, rank: int, secret: str) -> dict[str, list[float]]:
    """Checks, then times this rank's calls; returns the times of each case."""
    place = shape.places().enter(rank)
    store = f"tcp://{Hosts.address(0)}:{PORT}"
    rows = shape.tokens * shape.size
    arena = (64 << 20) + 3 * rows * shape.hidden * 2
    with (
        tokenyard.connect(
            store, rank=rank, size=shape.size, host_store=rank == 0, secret=secret, **place
        ) as job,
        job.world(
            arena_bytes=arena,
            timeout=120.0,
            network=tokenyard.NetworkOptions(connections=CONNECTIONS),
        ) as world,
    ):
        exchange = tokenyard.ExpertParallel(
            world,
            experts=shape.experts,
            hidden=shape.hidden,
            topk=shape.topk,
            tokens_max=shape.tokens,
        )
        ids = shape.experts_of_tokens(rank)
        x = np.empty((shape.tokens, shape.hidden), ml_dtypes.bfloat16)
        x[:] = (np.arange(shape.tokens) % 16 + rank % 4)[:, None]
        received = exchange.dispatch(x, ids)
        y = np.array(received.x)
        home = exchange.combine(y, received)
        exchange.wait()
        copies = shape.ranks_of_tokens(rank).sum(axis=1, keepdims=True)
        # Up to 8 ranks times 19 are integers that bfloat16 holds.
        if not (np.asarray(home, np.float32) == x.astype(np.float32) * copies).all():
            raise AssertionError(f"rank {rank}: a sum is wrong")

        def dispatch() -> None:
            exchange.dispatch(x, ids)
            exchange.wait()

        def combine() -> None:
            exchange.combine(y, received)
            exchange.wait()

        times = {"dispatch bf16": slowest(world, shape.calls, dispatch)}
        times["combine bf16"] = slowest(world, shape.calls, combine)

        raw = RawSockets(shape, rank, world)
        between = shape.rows_between_hosts() * shape.hidden * 2
        host, rail = divmod(rank, shape.ranks_per_host)
        away = [peer for peer in range(shape.hosts) if peer != host]
        out = {peer: int(between[rank, peer]) for peer in away}
        back = {peer: int(between[peer * shape.ranks_per_host + rail, host]) for peer in away}
        times["raw dispatch"] = slowest(world, shape.calls, lambda: raw.exchange(out, back))
        times["raw combine"] = slowest(world, shape.calls, lambda: raw.exchange(back, out))
        raw.close()
        world.barrier("bench: all is measured")
        exchange.close()
    return times


def run(shape: Shape) -> dict[str, list[float]]:
    """Runs all ranks; returns rank 0's times. Raises RuntimeError if a rank fails."""
    hosts = shape.places()
    ranks: list[subprocess.Popen[str]] = []
    secret = secrets.token_hex(16)
    try:
        hosts.make()
        for host in range(shape.hosts if shape.megabytes_per_s else 0):
            hosts.slow_down(host, shape.megabytes_per_s * 8)
        for rank in range(shape.size):
            work = json.dumps(dict(shape=asdict(shape), rank=rank, secret=secret))
            command = [sys.executable, __file__, "--work", work]
            ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        end = time.monotonic() + LONGEST_S
        said = [one.communicate(timeout=max(end - time.monotonic(), 1))[0] for one in ranks]
        failed = [rank for rank, one in enumerate(ranks) if one.returncode != 0]
        if failed:
            raise RuntimeError(f"ranks {failed} failed; they have said why above")
        return json.loads(said[0])
    finally:
        for one in ranks:
            if one.poll() is None:
                one.kill()
            one.wait()
        with contextlib.suppress(OSError):
            hosts.remove()


def rows_of(shape: Shape, times: dict[str, list[float]]) -> list[dict[str, Any]]:
    def spread(of: list[float]) -> dict[str, float]:
        return dict(median=round(median(of), 1), min=round(min(of), 1), max=round(max(of), 1))

    between = shape.rows_between_hosts() * shape.hidden * 2
    by_host = between.reshape(shape.hosts, shape.ranks_per_host, shape.hosts).sum(axis=1)
    # A combine's rows leave the host that a dispatch's have come to.
    most = {"dispatch": by_host.sum(axis=1).max(), "combine": by_host.sum(axis=0).max()}
    pace = f"{shape.megabytes_per_s:g} MB/s" if shape.megabytes_per_s else "unpaced"
    return [
        dict(
            case=f"{phase} bf16 {shape.hosts} hosts {pace}",
            gpus=0,
            ranks=shape.size,
            tokens=shape.tokens,
            hidden=shape.hidden,
            sms=0,
            unit="us",
            ours=spread(times[f"{phase} bf16"]),
            peer=dict(name="raw tcp", **spread(times[f"raw {phase}"])),
            floor=round(float(most[phase]) / shape.megabytes_per_s, 1)
            if shape.megabytes_per_s
            else 0.0,
        )
        for phase in ("dispatch", "combine")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 3, 4], help="hosts of a run")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of a host")
    parser.add_argument("--rate", type=float, nargs="+", default=[10.0], help="MB/s; 0: unpaced")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of a rank")
    parser.add_argument("--hidden", type=int, default=7168, help="elements of a token")
    parser.add_argument("--calls", type=int, default=5, help="timed calls")
    parser.add_argument("--smoke", action="store_true", help="two hosts, few tokens")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work = json.loads(options.work)
        print(json.dumps(run_rank(Shape(**work["shape"]), work["rank"], work["secret"])))
        return
    if options.smoke:
        options.hosts, options.tokens, options.hidden, options.calls = [2], 16, 256, 1
    rows = []
    for hosts in options.hosts:
        for rate in options.rate:
            ranks = hosts * options.ranks
            shape = Shape(
                name=f"tokenyard-paced-{os.getpid()}",
                hosts=hosts,
                ranks_per_host=options.ranks,
                tokens=options.tokens,
                hidden=options.hidden,
                topk=min(8, 8 * ranks),
                experts=8 * ranks,
                calls=options.calls,
                megabytes_per_s=rate,
            )
            for row in rows_of(shape, run(shape)):
                ours, raw = row["ours"]["median"], row["peer"]["median"]
                print(
                    f"{row['case']:34} {ours / 1e3:9.1f} ms   raw tcp {raw / 1e3:9.1f} ms   "
                    f"{100 * raw / ours:5.1f} % of raw   floor {row['floor'] / 1e3:9.1f} ms",
                    flush=True,
                )
                rows.append(row)
    if options.out:
        write_results(options.out, environment(gpus=0), rows)


if __name__ == "__main__":
    main()
