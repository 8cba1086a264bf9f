"""The calls that DeepEP's test between hosts makes of a Buffer, with its shapes and its checks.

Its own test needs hosts of eight GPUs. This one takes any hosts, and tensors of the CPU. As a
program it makes all calls once, by default over two hosts of eight ranks:

    export PYTHONPATH=python:build/host/python/bindings:compat/deep_ep
    python tests/python/deep_ep_internode.py
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import deep_ep
import torch
from deep_ep.utils.math import (
    calc_diff,
    create_grouped_scores,
    hash_tensor,
    inplace_unique,
    per_token_cast_back,
    per_token_cast_to_fp8,
)

import tokenyard

NVL_BYTES = 8 << 20
ARENA_BYTES = 128 << 20
LARGEST_ERROR = 5e-6
LARGEST_ERROR_FP8 = 5e-4


@dataclass(frozen=True)
class Sizes:
    """Sizes of the calls; those of DeepEP's test are in brackets."""

    tokens: int = 24
    """Per rank [4096]."""
    hidden: int = 256
    """[7168]"""
    topk: int = 4
    """[8]"""
    experts_per_rank: int = 4
    """[256 in all]"""
    hosts_per_token: int = 2
    """Hosts that a token goes to, at most [min(hosts, 4)]."""


class Rank:
    """One rank's tokens and choices, and what it knows of all ranks'."""

    def __init__(self, world: tokenyard.World, sizes: Sizes) -> None:
        self.world, self.sizes = world, sizes
        self.host_of = torch.tensor(world.topology.host_of)
        self.experts = sizes.experts_per_rank * world.size
        random = torch.Generator().manual_seed(100 + world.rank)
        shape = (sizes.tokens, sizes.hidden)
        own = torch.full(shape, float(world.rank), dtype=torch.bfloat16)
        mixed = torch.randn(shape, generator=random).to(torch.bfloat16)
        values, scales = per_token_cast_to_fp8(own)
        self.rows = {
            "own number": own,
            "random": mixed,
            # Scales by columns, as GEMMs read them.
            "own number, FP8": (values, scales.T.contiguous().T),
            "random, FP8": per_token_cast_to_fp8(mixed),
        }
        self.sent = {"own number": own, "random": mixed}
        scores = torch.randn(sizes.tokens, self.experts, generator=random).abs() + 1
        hosts = int(self.host_of.max()) + 1
        best = scores.view(sizes.tokens, hosts, -1).amax(-1)
        groups = best.topk(min(sizes.hosts_per_token, hosts), dim=-1).indices
        scores = create_grouped_scores(scores, groups, hosts)
        self.topk_idx = scores.topk(sizes.topk, dim=-1).indices
        self.weights = {
            "own number": torch.full((sizes.tokens, sizes.topk), float(world.rank)),
            "random": torch.randn(sizes.tokens, sizes.topk, generator=random),
        }
        self.layout()

    def layout(self) -> None:
        """Counts by itself what `get_dispatch_layout` returns."""
        ranks, hosts = self.world.size, int(self.host_of.max()) + 1
        of_rank = self.topk_idx // self.sizes.experts_per_rank
        self.in_rank = (of_rank[:, :, None] == torch.arange(ranks)).any(1)
        unique = of_rank.clone()
        inplace_unique(unique, ranks)
        self.per_rank = torch.stack([(unique == rank).sum() for rank in range(ranks)]).int()
        of_host = self.host_of[of_rank]
        inplace_unique(of_host, hosts)
        self.per_host = torch.stack([(of_host == host).sum() for host in range(hosts)]).int()
        self.per_expert = torch.bincount(self.topk_idx.flatten(), minlength=self.experts).int()
        self.rows_here = int(self.total(self.per_rank)[self.world.rank])
        per_expert = self.total(self.per_expert).view(ranks, -1)
        self.rows_per_expert_here = per_expert[self.world.rank].tolist()

    def total(self, counts: torch.Tensor) -> torch.Tensor:
        """Returns the sum over ranks, as all_reduce would."""
        told = self.world.all_gather(counts.numpy().tobytes(), "counts of a test")
        every = [torch.frombuffer(bytearray(theirs), dtype=torch.int32) for theirs in told]
        return torch.stack(every).sum(0)


def assert_ordered_by_source(rows: torch.Tensor, ends: torch.Tensor) -> None:
    """Rows hold their source's number, and those of a rank end where the handle says."""
    assert torch.equal(rows.amin(1), rows.amax(1))
    sources = torch.repeat_interleave(torch.arange(len(ends)), ends.diff(prepend=ends.new_zeros(1)))
    assert torch.equal(rows[:, 0].to(torch.int64), sources)


def values_of(rows: Any) -> torch.Tensor:
    return per_token_cast_back(*rows) if isinstance(rows, tuple) else rows


def bits_of(rows: Any) -> int:
    return sum(map(hash_tensor, rows)) if isinstance(rows, tuple) else hash_tensor(rows)


class Case:
    """One combination of rows and modes."""

    def __init__(
        self, rank: Rank, buffer: Any, rows: str, with_ids: bool, waits: bool, event: bool
    ) -> None:
        self.rank, self.buffer = rank, buffer
        self.rows, self.x = rows, rank.rows[rows]
        self.content = rows.removesuffix(", FP8")
        self.weights = rank.weights[self.content] if with_ids else None
        self.config = deep_ep.Config(24, 8, 512, 16, 128)
        self.waits, self.event = waits, event

    def how(self) -> dict[str, Any]:
        how: dict[str, Any] = dict(config=self.config, async_finish=self.waits)
        return how | dict(previous_event=self.buffer.capture()) if self.event else how

    def run(self) -> int:
        """Dispatches, once more on the route, and combines; returns the bits of the results."""
        rank = self.rank
        given: dict[str, Any] = dict(
            x=self.x,
            num_tokens_per_rank=rank.per_rank,
            num_tokens_per_rdma_rank=rank.per_host,
            is_token_in_rank=rank.in_rank,
            num_tokens_per_expert=rank.per_expert,
        )
        if self.weights is not None:
            given |= dict(topk_idx=rank.topk_idx, topk_weights=self.weights)
        rows, ids, weights, counts, handle, event = self.buffer.dispatch(**given, **self.how())
        if self.waits:
            event.current_stream_wait()
        bits = bits_of(rows)
        received = values_of(rows)
        assert len(received) == rank.rows_here
        assert counts == rank.rows_per_expert_here
        assert len(handle) == 10
        ends = handle[-4]
        assert ends[-1] == rank.rows_here == len(handle[7])
        assert torch.equal(handle[0], rank.in_rank)
        if self.content == "own number":
            assert_ordered_by_source(received, ends)
        if self.weights is not None:
            self.check_ids(ids, weights, ends)
            self.check_fixed_size(given, (rows, ids, weights))
        else:
            again = self.buffer.dispatch(x=self.x, handle=handle, **self.how())[0]
            assert torch.equal(values_of(again), received)
        return bits + self.combine(received, weights, handle)

    def check_ids(self, ids: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> None:
        here = ids >= 0
        assert (ids < self.rank.sizes.experts_per_rank).all()
        per_expert = torch.bincount(ids[here], minlength=self.rank.sizes.experts_per_rank)
        assert per_expert.tolist() == self.rank.rows_per_expert_here
        if self.content == "own number":
            theirs = weights.where(here, weights.amax(1, keepdim=True).expand_as(weights))
            assert_ordered_by_source(theirs, ends)

    def check_fixed_size(self, given: dict[str, Any], expected: tuple[Any, ...]) -> None:
        """The same with a place for each token of each rank, and no wait for the counts."""
        places = self.rank.sizes.tokens * self.rank.world.size
        found = self.buffer.dispatch(**given, num_worst_tokens=places, **self.how())
        rows, ids, weights, counts, _, _ = found
        assert counts == []
        for seen, wanted in zip((values_of(rows), ids, weights), expected, strict=True):
            assert len(seen) == places
            assert torch.equal(seen[: self.rank.rows_here], values_of(wanted))
        assert (ids[self.rank.rows_here :] == -1).all()

    def combine(self, rows: torch.Tensor, weights: Any, handle: Any) -> int:
        random = torch.Generator().manual_seed(7)
        shape = (self.rank.sizes.tokens, self.rank.sizes.hidden)
        biases = (
            torch.ones(shape, dtype=torch.bfloat16),
            torch.randn(shape, generator=random).to(torch.bfloat16),
        )
        beside = {} if self.weights is None else dict(topk_weights=weights)
        found = self.buffer.combine(x=rows, bias=biases, handle=handle, **beside, **self.how())
        home, home_weights, event = found
        if self.waits:
            event.current_stream_wait()
        copies = self.rank.in_rank.sum(1, keepdim=True)
        mean = (home.float() - biases[0].float() - biases[1].float()) / copies
        largest = LARGEST_ERROR_FP8 if self.rows == "random, FP8" else LARGEST_ERROR
        assert calc_diff(mean, self.rank.sent[self.content]) < largest
        if self.weights is not None:
            # A choice's weight is on one rank alone, whichever it is: the others' are 0.
            assert calc_diff(home_weights, self.weights) < 1e-9
        return hash_tensor(home)


def cases(rank: Rank, buffer: Any, modes: bool) -> Iterator[Case]:
    """Yields every combination; without `modes`, those of contents and ids alone."""
    for waits, event in itertools.product((False, True) if modes else (True,), repeat=2):
        for rows, with_ids in itertools.product(rank.rows, (False, True)):
            yield Case(rank, buffer, rows, with_ids, waits, event)


def check_layout(rank: Rank, buffer: Any) -> None:
    found = buffer.get_dispatch_layout(rank.topk_idx, rank.experts)
    wanted = (rank.per_rank, rank.per_host, rank.per_expert, rank.in_rank)
    for seen, expected in zip(found, wanted, strict=False):
        assert torch.equal(seen, expected)


def exercise(world: tokenyard.World, sizes: Sizes, chosen: slice, modes: bool = False) -> list[int]:
    """Makes the calls of some combinations on a new buffer; returns the bits of each's results."""
    buffer = deep_ep.Buffer(world, NVL_BYTES, explicitly_destroy=True)
    assert buffer.runtime.get_num_rdma_ranks() == world.topology.hosts
    rank = Rank(world, sizes)
    check_layout(rank, buffer)
    bits = [case.run() for case in list(cases(rank, buffer, modes))[chosen]]
    world.barrier("all calls are over")
    buffer.destroy()
    return bits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=2, metavar="N", help="(2)")
    parser.add_argument("--ranks-per-host", type=int, default=8, metavar="N", help="(8)")
    parser.add_argument("--tokens", type=int, default=Sizes.tokens, metavar="N")
    parser.add_argument("--hidden", type=int, default=Sizes.hidden, metavar="N")
    parser.add_argument("--topk", type=int, default=Sizes.topk, metavar="N")
    parser.add_argument("--processes", action="store_true", help="over TCP; else threads")
    parser.add_argument("--modes", action="store_true", help="also without events and streams")
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # The ranks share the machine's cores.
    sizes = Sizes(tokens=chosen.tokens, hidden=chosen.hidden, topk=chosen.topk)
    begun = time.monotonic()
    made = tokenyard.launch(
        exercise,
        ranks=chosen.hosts * chosen.ranks_per_host,
        hosts=chosen.hosts,
        processes=chosen.processes,
        arena_bytes=ARENA_BYTES,
        timeout=600,
        args=(sizes, slice(None), chosen.modes),
    )
    print(
        f"{len(made[0])} combinations on {chosen.hosts} hosts of {chosen.ranks_per_host} ranks:"
        f" right, in {time.monotonic() - begun:.0f} s"
    )


if __name__ == "__main__":
    main()
