"""Device collectives between processes that count as being on two hosts, over TCP, beside NumPy."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tokenyard
from tokenyard import DeviceCollectives, InvalidArgument, PeerLost, PeerTimeout, launch


def splits_and_messages(world: tokenyard.World, collectives: DeviceCollectives) -> None:
    """Parts and messages of every pair's own size, of every dtype of a size."""
    ranks, rank = world.size, world.rank
    for dtype in (np.uint8, np.float16, np.int32, np.float64, np.complex128):
        for scale in (0, 1, 777, 40_001):
            sizes = np.arange(ranks * ranks).reshape(ranks, ranks) % 3 * scale
            parts = [
                [np.full(sizes[s, d], 7 * s + d + 1, dtype) for d in range(ranks)]
                for s in range(ranks)
            ]
            mine = np.concatenate(parts[rank])
            expected = np.concatenate([parts[source][rank] for source in range(ranks)])
            sent, received = sizes[rank], sizes[:, rank]
            out = np.zeros_like(expected)
            collectives.all_to_all(mine, out, sent=sent.tolist(), received=received.tolist())
            np.testing.assert_array_equal(out, expected)
            out[:] = 0
            told = np.zeros(ranks, np.int64)
            splits = sent.astype(np.int64)
            collectives.all_to_all(mine, out, splits=splits, received_splits=told)
            np.testing.assert_array_equal(out, expected)
            np.testing.assert_array_equal(told, received)

            others = [peer for peer in range(ranks) if peer != rank]
            came = [np.zeros_like(parts[peer][rank]) for peer in others]
            collectives.exchange(
                [(parts[rank][peer], peer, peer) for peer in others],
                [(array, peer, rank) for array, peer in zip(came, others, strict=True)],
            )
            collectives.wait()
            for array, peer in zip(came, others, strict=True):
                np.testing.assert_array_equal(array, parts[peer][rank])
    x = np.full(3, rank)
    if rank == 0:
        collectives.send(x, ranks - 1, tag=5)
    elif rank == ranks - 1:
        collectives.receive(x, 0, tag=5)
        collectives.wait()
        assert (x == 0).all()


def operations(world: tokenyard.World) -> None:
    ranks, rank = world.size, world.rank
    with DeviceCollectives(world) as collectives:
        for elements in (0, 1, 77, 5000, 300_001):
            root = elements % ranks
            numbers = np.random.default_rng(elements).integers(0, 9, (ranks, ranks * elements))
            inputs = numbers.astype(np.float32)
            parts = inputs.reshape(ranks, ranks, elements)

            x = inputs[rank].copy()
            collectives.all_reduce(x)
            np.testing.assert_array_equal(x, inputs.sum(0))
            x = inputs[rank].copy()
            collectives.reduce(x, "max", root=root)
            np.testing.assert_array_equal(x, inputs.max(0) if rank == root else inputs[rank])
            x = inputs[rank].copy()
            collectives.broadcast(x, root=root)
            np.testing.assert_array_equal(x, inputs[root])

            mine = np.ascontiguousarray(parts[rank, 0])
            out = np.empty_like(inputs[0])
            collectives.all_gather(mine, out)
            np.testing.assert_array_equal(out, parts[:, 0].reshape(-1))
            out[:] = 0
            collectives.gather(mine, out, root=root)
            if rank == root:
                np.testing.assert_array_equal(out, parts[:, 0].reshape(-1))
            part = np.empty_like(mine)
            collectives.scatter(part, inputs[rank], root=root)
            np.testing.assert_array_equal(part, parts[root, rank])
            collectives.reduce_scatter(inputs[rank], part)
            np.testing.assert_array_equal(part, parts[:, rank].sum(0))
            collectives.all_to_all(inputs[rank], out)
            np.testing.assert_array_equal(out, parts[:, rank].reshape(-1))
            collectives.barrier()
        counts = [3, *[0] * (ranks - 2), 5]
        out = np.empty(8, np.int64)
        collectives.all_gather(np.full(counts[rank], rank), out, counts=counts)
        np.testing.assert_array_equal(out, [0] * 3 + [ranks - 1] * 5)
        splits_and_messages(world, collectives)
        world.barrier()


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_operation(ranks: int) -> None:
    """Three ranks: the first host has one more."""
    launch(operations, ranks=ranks, processes=True, hosts=2, arena_bytes=64 << 20, timeout=60)


def all_reduced(collectives: DeviceCollectives, elements: int, **call: Any) -> None:
    collectives.all_reduce(np.ones(elements, np.float32), **call)
    collectives.wait()


def differing(world: tokenyard.World) -> tuple[str, int | None]:
    collectives = DeviceCollectives(world)
    with pytest.raises(InvalidArgument) as caught:
        all_reduced(collectives, 3 if world.rank == 2 else 4)
    world.barrier()
    return caught.value.argument, caught.value.rank


def test_calls_that_differ_are_named_alike() -> None:
    told = launch(differing, ranks=3, processes=True, hosts=2, arena_bytes=64 << 20, timeout=60)
    assert told == [("size", 2)] * 3


def silent(world: tokenyard.World) -> int | None:
    collectives = DeviceCollectives(world)
    all_reduced(collectives, 4)
    named = None
    if world.rank != 1:
        with pytest.raises(PeerTimeout) as caught:
            all_reduced(collectives, 100_000, timeout=1.0)
        named = caught.value.rank
    world.barrier()
    return named


def test_a_silent_rank_is_named_at_the_deadline() -> None:
    told = launch(silent, ranks=3, processes=True, hosts=2, arena_bytes=64 << 20, timeout=60)
    assert told == [1, None, 1]


def until_one_dies(world: tokenyard.World) -> int:
    collectives = DeviceCollectives(world)
    try:
        for call in range(100_000):
            all_reduced(collectives, 100_000)
            if call == 5 and world.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    except PeerLost as error:
        return error.rank
    return -1


def receiving_from_one_that_dies(world: tokenyard.World) -> int:
    """Ranks 0 and 2 are on different hosts than rank 1, or the same; both await its message."""
    collectives = DeviceCollectives(world)
    x = np.ones(100_000, np.float32)
    try:
        for call in range(100_000):
            if world.rank != 1:
                collectives.receive(x, 1)
                collectives.wait()
                continue
            collectives.exchange([(x, 0, 0), (x, 2, 0)])
            collectives.wait()
            if call == 5:
                os.kill(os.getpid(), signal.SIGKILL)
    except PeerLost as error:
        return error.rank
    return -1


@pytest.mark.parametrize("program", [receiving_from_one_that_dies, until_one_dies])
def test_a_killed_rank_ends_the_others_calls(program: Callable[[tokenyard.World], int]) -> None:
    """The deadline is too far to be met."""
    told = launch(
        *(program, 3),
        processes=True,
        hosts=2,
        arena_bytes=64 << 20,
        timeout=600,
        on_death="continue",
    )
    assert [told[0], told[2]] == [1, 1]
