"""Collectives on the tensors of a world's device: here of host worlds, by NumPy and by torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from collectives_reference import FUNCTIONS

import tokenyard
from tokenyard import DeviceCollectives, launch

try:
    import torch
except ModuleNotFoundError:
    torch = None

RANKS = 3
FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
BITWISE = ("bit_and", "bit_or", "bit_xor")
ARITHMETIC = ("sum", "product", "min", "max")


def dtype_of(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name, name))


def mine(rank: int, elements: int, name: str) -> Any:
    """Returns small numbers, whose sums and products of three are exact in every dtype."""
    numbers = np.random.default_rng(rank).integers(0, 2, elements)
    return (numbers + (0 if name == "bool" else rank % 2)).astype(dtype_of(name))


def reduced(inputs: list[Any], op: str) -> Any:
    wide = [one.astype(np.float64 if one.dtype.name in FLOATS else np.int64) for one in inputs]
    total = FUNCTIONS[op].reduce(wide)
    if op == "average":
        total = total / len(inputs)
    return (total != 0 if inputs[0].dtype == bool else total).astype(inputs[0].dtype)


def same(seen: Any, expected: Any) -> None:
    assert seen.dtype == expected.dtype
    np.testing.assert_array_equal(seen.view(np.uint8), expected.view(np.uint8))


def waited(
    collectives: DeviceCollectives, call: Callable[..., Any], *given: Any, **more: Any
) -> None:
    """Makes a call and waits for it: on a GPU, errors of the device are raised only then."""
    call(*given, **more)
    collectives.wait()


def reductions(world: tokenyard.World, name: str) -> None:
    ops = ARITHMETIC + (("average",) if name in FLOATS else BITWISE)
    with DeviceCollectives(world) as collectives:
        for elements in (0, 1, 77):
            inputs = [mine(rank, elements * world.size, name) for rank in range(world.size)]
            for op in ops:
                x, expected = inputs[world.rank].copy(), reduced(inputs, op)
                out = np.empty_like(x)
                collectives.all_reduce(x, op, out=out)
                collectives.all_reduce(x, op)
                same(out, expected)
                same(x, expected)

                x = inputs[world.rank].copy()
                out = np.full_like(x, 1)
                collectives.reduce(x, op, root=1, out=out if world.rank == 1 else None)
                same(x, inputs[world.rank])
                same(out, expected if world.rank == 1 else np.full_like(x, 1))

                part = np.empty_like(x[:elements])
                collectives.reduce_scatter(x, part, op)
                same(part, expected.reshape(world.size, -1)[world.rank])


@pytest.mark.parametrize("name", FLOATS + INTEGERS)
def test_every_dtype_is_reduced(name: str) -> None:
    launch(reductions, ranks=RANKS, args=(name,))


def every_e5m2(world: tokenyard.World) -> None:
    """Every number of E5M2 with others: NumPy folds in float32, ml_dtypes rounds once."""
    values = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e5m2)
    inputs = [np.roll(np.tile(values, 4), 37 * rank * rank) for rank in range(world.size)]
    largest = float(ml_dtypes.finfo(ml_dtypes.float8_e5m2).max)
    with DeviceCollectives(world) as collectives, np.errstate(all="ignore"):
        for op in (*ARITHMETIC, "average"):
            wide = inputs[0].astype(np.float32)
            for one in inputs[1:]:
                wide = FUNCTIONS[op](wide, one.astype(np.float32))
            if op == "average":
                wide = wide / np.float32(world.size)
            clipped = np.where(np.isinf(wide), wide, np.clip(wide, -largest, largest))
            x = inputs[world.rank].copy()
            collectives.all_reduce(x, op)
            expected = clipped.astype(ml_dtypes.float8_e5m2).astype(np.float32)
            np.testing.assert_array_equal(x.astype(np.float32), expected)


def test_every_number_of_e5m2_is_reduced() -> None:
    launch(every_e5m2, ranks=RANKS)


def moves(world: tokenyard.World, name: str, protocol: str) -> None:
    ranks, rank = range(world.size), world.rank
    with DeviceCollectives(
        world, slot_bytes=64, packet_bytes=256, chunk_bytes=64, ring_bytes=256
    ) as collectives:
        call = dict(protocol=protocol)
        for elements in (0, 1, 65):
            inputs = [mine(source, elements * world.size, name) for source in ranks]
            x = inputs[rank].copy()
            whole = np.empty(len(x) * world.size, x.dtype)
            collectives.all_gather(x, whole, **call)
            same(whole, np.concatenate(inputs))

            y = x.copy()
            collectives.broadcast(y, root=2, **call)
            same(y, inputs[2])

            gathered = np.empty_like(whole) if rank == 1 else None
            collectives.gather(x, gathered, root=1, **call)
            if gathered is not None:
                same(gathered, np.concatenate(inputs))

            part = np.empty_like(x[:elements])
            collectives.scatter(part, x if rank == 0 else None, root=0, **call)
            same(part, inputs[0].reshape(world.size, -1)[rank])

            out = np.empty_like(x)
            collectives.all_to_all(x, out, **call)
            parts = [one.reshape(world.size, -1)[rank] for one in inputs]
            same(out, np.concatenate(parts))
            same(x, inputs[rank])
        collectives.barrier(**call)


@pytest.mark.parametrize("protocol", ["automatic", "slots", "packets", "rings"])
@pytest.mark.parametrize("name", ["int16", "float8_e5m2", "complex128"])
def test_bytes_of_every_dtype_are_moved(name: str, protocol: str) -> None:
    launch(moves, ranks=RANKS, args=(name, protocol))


def uneven(world: tokenyard.World) -> None:
    counts = [3, 0, 70]
    with DeviceCollectives(world) as collectives:
        inputs = [mine(rank, count, "float32") for rank, count in enumerate(counts)]
        whole = np.empty(sum(counts), np.float32)
        collectives.all_gather(inputs[world.rank], whole, counts=counts)
        same(whole, np.concatenate(inputs))

        ends = np.cumsum(counts)
        begin, end = ends[world.rank] - counts[world.rank], ends[world.rank]
        given = [mine(rank, sum(counts), "float32") for rank in range(world.size)]
        part = np.empty(counts[world.rank], np.float32)
        collectives.reduce_scatter(given[world.rank], part, "max", counts=counts)
        same(part, reduced(given, "max")[begin:end])


def test_parts_of_different_sizes() -> None:
    launch(uneven, ranks=RANKS)


def in_processes(world: tokenyard.World) -> list[float]:
    with DeviceCollectives(world) as collectives:
        x = np.full(100_000, world.rank + 1, np.float32)
        collectives.all_reduce(x, factor=0.5)
        collectives.wait()
        return [float(x[0]), float(x[-1])]


def test_between_processes() -> None:
    assert launch(in_processes, ranks=2, processes=True) == [[1.5, 1.5], [1.5, 1.5]]


@pytest.mark.skipif(torch is None, reason="needs torch: pip install torch")
def test_tensors_of_torch() -> None:
    def body(world: tokenyard.World) -> None:
        with DeviceCollectives(world) as collectives:
            for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool):
                x = torch.full((3, 5), 1).to(dtype)
                collectives.all_reduce(x, "max")
                assert (x.float() == 1).all()
            moved = torch.full((4,), float(world.rank)).to(torch.float8_e5m2)
            whole = torch.empty(4 * world.size).to(torch.float8_e5m2)
            collectives.all_gather(moved, whole)
            expected = torch.arange(world.size).repeat_interleave(4).float()
            assert torch.equal(whole.float(), expected)

    launch(body, ranks=RANKS)


def differing(world: tokenyard.World) -> str:
    collectives = DeviceCollectives(world)
    x = np.ones(4 if world.rank == 1 else 5, np.float32)
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        waited(collectives, collectives.all_reduce, x)
    with pytest.raises(tokenyard.InvalidArgument):
        collectives.barrier()
    assert caught.value.rank == 1
    return str(caught.value.argument)


def test_calls_that_differ_are_named_alike() -> None:
    assert launch(differing, ranks=RANKS) == ["size"] * RANKS


WRONG: dict[str, tuple[Callable[[DeviceCollectives, Any], Any], str]] = {
    "a list": (lambda all_, x: all_.all_reduce([1.0]), "array"),
    "complex numbers reduced": (lambda all_, x: all_.all_reduce(x.astype(np.complex64)), "input"),
    "a type of no name": (lambda all_, x: all_.broadcast(x.astype(">f4"), root=0), "array"),
    "gaps": (lambda all_, x: all_.all_reduce(x[::2]), "array"),
    "read-only": (lambda all_, x: all_.all_reduce(np.broadcast_to(x[:1], 1)), "array"),
    "no such op": (lambda all_, x: all_.all_reduce(x, "mean"), "op"),
    "another dtype": (lambda all_, x: all_.all_reduce(x, out=x.astype(np.int32)), "out"),
    "another size": (lambda all_, x: all_.all_reduce(x, out=np.empty(3, x.dtype)), "result"),
    "a text as factor": (lambda all_, x: all_.all_reduce(x, factor="2"), "factor"),
    "a factor of a maximum": (lambda all_, x: all_.all_reduce(x, "max", factor=2), "factor"),
    "a root too many": (lambda all_, x: all_.broadcast(x, root=2), "root"),
    "no such protocol": (lambda all_, x: all_.barrier(protocol="fast"), "protocol"),
    "a tensor outside": (lambda all_, x: all_.broadcast(x, root=0, protocol="direct"), "input"),
    "no time": (lambda all_, x: all_.barrier(timeout=0), "timeout"),
    "too few counts": (lambda all_, x: all_.all_gather(x, x, counts=[4]), "counts"),
    "other counts": (lambda all_, x: all_.all_gather(x, x.repeat(2), counts=[3, 4]), "result"),
    "half a part": (lambda all_, x: all_.all_to_all(x[:3], x[:3].copy()), "input"),
    "no result on the root": (lambda all_, x: all_.gather(x, None, root=all_.world.rank), "out"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named_and_the_next_call_works(name: str) -> None:
    def body(world: tokenyard.World) -> None:
        with DeviceCollectives(world) as collectives:
            call, argument = WRONG[name]
            x = np.ones(4, np.float32)
            with pytest.raises(tokenyard.InvalidArgument) as caught:
                call(collectives, x)
            assert caught.value.argument == argument
            collectives.all_reduce(x)
            assert x[0] == world.size

    launch(body, ranks=2)


def test_memory_is_told() -> None:
    for ranks in (2, 4, 8):
        assert 0 < DeviceCollectives.memory(ranks=ranks) <= 64 << 20


def test_a_silent_rank_is_named_at_the_deadline() -> None:
    def body(world: tokenyard.World) -> int | None:
        collectives = DeviceCollectives(world)
        named = None
        if world.rank != 1:
            with pytest.raises(tokenyard.PeerTimeout) as caught:
                waited(collectives, collectives.all_reduce, np.ones(3, np.float32), timeout=0.3)
            named = caught.value.rank
        world.barrier()
        return named

    assert launch(body, ranks=RANKS) == [1, None, 1]


def splits(world: tokenyard.World) -> None:
    """Rank r sends 3 * r + s elements to rank s, and none to the rank before it."""

    def count(source: int, destination: int) -> int:
        return 0 if (destination + 1) % world.size == source else 3 * source + 40 * destination

    def part(source: int, destination: int) -> Any:
        return np.full(count(source, destination), 10 * source + destination, np.int16)

    ranks, rank = range(world.size), world.rank
    with DeviceCollectives(world, chunk_bytes=16, ring_bytes=32) as collectives:
        for _ in range(3):
            given = np.concatenate([part(rank, peer) for peer in ranks])
            out = np.zeros(sum(count(peer, rank) for peer in ranks), np.int16)
            collectives.all_to_all(
                given,
                out,
                sent=[count(rank, peer) for peer in ranks],
                received=[count(peer, rank) for peer in ranks],
            )
            same(out, np.concatenate([part(peer, rank) for peer in ranks]))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_all_to_all_of_parts_of_different_sizes(ranks: int) -> None:
    launch(splits, ranks=ranks)


def test_a_pair_that_differs_is_named_on_all_ranks() -> None:
    def body(world: tokenyard.World) -> tuple[str, int | None, str]:
        collectives = DeviceCollectives(world)
        sent = [2, 2, 2]
        received = [2, 3, 2] if world.rank == 0 else sent
        out = np.zeros(sum(received), np.float32)
        ones = np.ones(6, np.float32)
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            waited(collectives, collectives.all_to_all, ones, out, sent=sent, received=received)
        return caught.value.argument, caught.value.rank, caught.value.seen

    assert launch(body, ranks=3) == [("received", 0, "12 bytes")] * 3


def messages(world: tokenyard.World) -> None:
    """Each rank sends to every other one, some of it more than a channel holds."""
    rank = world.rank
    others = [peer for peer in range(world.size) if peer != rank]

    def content(source: int, destination: int, tag: int) -> Any:
        return np.full(1 + 500 * tag, 16 * source + 4 * destination + tag, np.int32)

    with DeviceCollectives(world, chunk_bytes=16, ring_bytes=64) as collectives:
        for _ in range(2):
            sends = [(content(rank, peer, tag), peer, tag) for peer in others for tag in range(3)]
            receives = [
                (np.zeros(1 + 500 * tag, np.int32), peer, tag)
                for peer in reversed(others)
                for tag in range(3)
            ]
            collectives.exchange(sends, receives)
            for array, peer, tag in receives:
                same(array, content(peer, rank, tag))
            x = np.ones(7, np.float32)
            collectives.all_reduce(x)
            assert x[0] == world.size
        # One by one: what is small does not wait for its receiver.
        empty = np.zeros(0, np.int32)
        for peer in others:
            collectives.send(content(rank, peer, 0), peer, 7)
            collectives.send(empty, peer, 8)
        for peer in others:
            out = np.zeros(1, np.int32)
            collectives.receive(out, peer, 7)
            same(out, content(peer, rank, 0))
            collectives.receive(empty, peer, 8)


@pytest.mark.parametrize("ranks", [2, 3])
def test_messages(ranks: int) -> None:
    launch(messages, ranks=ranks)


def test_a_ring_of_long_messages() -> None:
    """Each rank sends to the next one and receives from the one before, in one call."""

    def body(world: tokenyard.World) -> None:
        before, after = (world.rank - 1) % world.size, (world.rank + 1) % world.size
        with DeviceCollectives(world, chunk_bytes=64, ring_bytes=64) as collectives:
            out = np.zeros(3000, np.float32)
            sent = np.full(3000, world.rank, np.float32)
            collectives.exchange([(sent, after, 0)], [(out, before, 0)])
            assert (out == before).all()

    launch(body, ranks=4)


@pytest.mark.parametrize("wrong", ["tag", "size", "type"])
def test_another_message_than_the_awaited_one_is_named(wrong: str) -> None:
    def body(world: tokenyard.World) -> tuple[int | None, str, str] | None:
        collectives = DeviceCollectives(world)
        if world.rank == 0:
            collectives.send(np.ones(4, np.float32), 1, 3)
            return None
        array = np.ones(5 if wrong == "size" else 4, np.int32 if wrong == "type" else np.float32)
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            waited(collectives, collectives.receive, array, 0, 4 if wrong == "tag" else 3)
        return caught.value.rank, caught.value.expected, caught.value.seen

    _, named = launch(body, ranks=2)
    bytes_, dtype = 20 if wrong == "size" else 16, "int32" if wrong == "type" else "float32"
    expected = f"{bytes_} bytes of {dtype} with tag {4 if wrong == 'tag' else 3}"
    assert named == (0, expected, "16 bytes of float32 with tag 3")


def test_a_message_that_nobody_sends_ends_at_its_deadline() -> None:
    def body(world: tokenyard.World) -> int | None:
        collectives = DeviceCollectives(world)
        named = None
        if world.rank == 0:
            with pytest.raises(tokenyard.PeerTimeout) as caught:
                waited(collectives, collectives.receive, np.ones(4, np.float32), 2, timeout=0.3)
            named = caught.value.rank
        world.barrier()
        return named

    assert launch(body, ranks=3) == [2, None, None]


def splits_on_the_device(world: tokenyard.World, dtype: str, capacity: int) -> None:
    """Rank s sends 5 * s + d + turn elements to rank d; no host knows what comes."""
    rank, ranks = world.rank, range(world.size)
    with DeviceCollectives(world, chunk_bytes=64, ring_bytes=192) as collectives:
        for turn in range(4):
            sent = np.array([[5 * s + d + turn for d in ranks] for s in ranks], np.int64)
            if turn == 3:
                sent[world.size - 1] = 0
            numbers = [mine(s, int(sent[s].sum()) + 3, dtype) for s in ranks]
            out = np.full(capacity, 7).astype(numbers[0].dtype)
            before = numbers[rank].copy()
            received = np.full(world.size, -1, np.int64)
            collectives.all_to_all(
                numbers[rank], out, splits=sent[rank].copy(), received_splits=received
            )
            assert received.tolist() == sent[:, rank].tolist()
            parts = []
            for s in ranks:
                begin = int(sent[s, :rank].sum())
                parts.append(numbers[s][begin : begin + int(sent[s, rank])])
            came = np.concatenate(parts)
            same(out[: len(came)], came)
            same(out[len(came) :], np.full(capacity - len(came), 7).astype(out.dtype))
            same(numbers[rank], before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8", "int64"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_splits_that_only_the_device_knows(dtype: str, ranks: int) -> None:
    launch(splits_on_the_device, ranks=ranks, args=(dtype, 200))


def wrong_splits(world: tokenyard.World, what: str) -> tuple[str, int | None, str]:
    collectives = DeviceCollectives(world)
    splits = np.full(world.size, 4, np.int64)
    out = np.empty(4 * world.size, np.float32)
    if world.rank == 1 and what == "negative":
        splits[2] = -1
    if world.rank == 1 and what == "many":
        splits[0] = 5
    if world.rank == 1 and what == "small":
        out = out[:-1]
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        waited(
            collectives,
            collectives.all_to_all,
            *(np.ones(4 * world.size, np.float32), out),
            splits=splits,
            received_splits=np.zeros(world.size, np.int64),
        )
    return caught.value.argument, caught.value.rank, caught.value.expected


@pytest.mark.parametrize("what", ["negative", "many", "small"])
def test_splits_that_do_not_fit_are_named_on_all_ranks(what: str) -> None:
    expected = (
        ("result", 1, "memory for 48 bytes that others send")
        if what == "small"
        else ("splits", 1, "counts of elements, 48 bytes in all at most")
    )
    assert launch(wrong_splits, ranks=3, args=(what,)) == [expected] * 3


def test_arrays_of_splits_are_checked() -> None:
    def body(world: tokenyard.World) -> None:
        collectives = DeviceCollectives(world)
        x, good = np.ones(4, np.float32), np.ones(1, np.int64)
        for given, argument in (
            (dict(splits=good), "received_splits"),
            (dict(received_splits=good), "received_splits"),
            (dict(splits=good.astype(np.int32), received_splits=good), "splits"),
            (dict(splits=good, received_splits=np.ones(2, np.int64)), "received_splits"),
            (dict(splits=good, received_splits=good, sent=[1], received=[1]), "sent"),
        ):
            with pytest.raises(tokenyard.InvalidArgument) as caught:
                collectives.all_to_all(x, np.empty_like(x), **given)
            assert caught.value.argument == argument
        collectives.close()

    launch(body, ranks=1)
