"""World, in this process: collectives, topology, rebuilding, closing."""

from __future__ import annotations

import threading

import pytest

import tokenyard
from tokenyard.world.world import RELEASED_ARENA_BYTES


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_all_gather_is_in_rank_order_whatever_the_lengths(ranks: int) -> None:
    everybody = tokenyard.launch(
        lambda world: world.all_gather(b"%d" % world.rank * world.rank), ranks=ranks
    )
    assert everybody == [[b"%d" % rank * rank for rank in range(ranks)]] * ranks


def test_barrier_holds_everybody() -> None:
    arrived = []

    def arrive(world: tokenyard.World) -> int:
        arrived.append(world.rank)
        world.barrier()
        return len(arrived)

    assert tokenyard.launch(arrive, ranks=4) == [4, 4, 4, 4]


def test_topology_of_one_host() -> None:
    def look(world: tokenyard.World) -> list[str]:
        topology = world.topology
        assert topology.hosts == 1
        assert topology.host_of == [0, 0, 0]
        assert "shared" in str(topology) or "same process" in str(topology)
        return [peer.reach for peer in topology.peers]

    seen = tokenyard.launch(look, ranks=3)
    for rank, reach in enumerate(seen):
        assert reach == ["self" if peer == rank else "load_store" for peer in range(3)]


def test_simulated_hosts_say_why_there_is_no_load_store() -> None:
    def look(world: tokenyard.World) -> tuple[str, str]:
        assert world.topology.hosts == 2
        far = world.topology.peers[(world.rank + 2) % 4]
        return far.reach, far.why_not

    for reach, why_not in tokenyard.launch(look, ranks=4, hosts=2):
        assert reach != "load_store"
        assert why_not


def test_rebuild_renumbers_and_works() -> None:
    def shrink(world: tokenyard.World) -> tuple[int, int, list[bytes]] | None:
        if world.rank == 1:
            return None
        old = world.rank
        with world.rebuild(without=[1]) as smaller:
            return smaller.rank, smaller.size, smaller.all_gather(b"%d" % old)

    assert tokenyard.launch(shrink, ranks=3) == [(0, 2, [b"0", b"2"]), None, (1, 2, [b"0", b"2"])]


def test_a_rebuilt_world_is_closed() -> None:
    def shrink(world: tokenyard.World) -> None:
        world.rebuild(without=[]).barrier()
        with pytest.raises(tokenyard.InvalidArgument, match="closed or rebuilt"):
            world.barrier()

    tokenyard.launch(shrink, ranks=2)


def test_a_world_rebuilt_while_it_sleeps_has_its_arena_again() -> None:
    def sleep(world: tokenyard.World) -> tuple[int, int]:
        world.release_arena()
        asleep = world._native.arena_bytes
        with world.rebuild(without=[]) as awake:
            with pytest.raises(tokenyard.InvalidArgument, match="one in use"):
                awake.restore_arena()
            return asleep, awake._native.arena_bytes

    sizes = tokenyard.launch(sleep, ranks=2, arena_bytes=1 << 20)
    assert sizes == [(RELEASED_ARENA_BYTES, 1 << 20)] * 2


def test_a_closed_world_says_so() -> None:
    def close(world: tokenyard.World) -> None:
        with world:
            world.barrier()
        world.close()  # A second call does nothing.
        assert repr(world) == "World(closed)"
        with pytest.raises(tokenyard.InvalidArgument, match="closed"):
            world.barrier()

    tokenyard.launch(close, ranks=2)


def facts_of(world: tokenyard.World) -> tuple[object, ...]:
    topology = world.topology
    return (
        world.rank,
        world.size,
        world.device,
        world.device_index,
        world.timeout,
        topology.hosts,
        str(topology),
    )


def test_facts_that_cannot_change_stay_readable() -> None:
    """An error handler that logs the rank does not fail itself."""

    def end_worlds(world: tokenyard.World) -> int:
        before = facts_of(world)
        smaller = world.rebuild(without=[])
        assert facts_of(world) == before
        of_smaller = facts_of(smaller)
        smaller.close()
        assert facts_of(smaller) == of_smaller
        return world.rank

    assert tokenyard.launch(end_worlds, ranks=2, timeout=20) == [0, 1]


def test_cancel_from_another_thread_ends_a_wait() -> None:
    ended = threading.Event()

    def wait(world: tokenyard.World) -> str:
        if world.rank == 1:
            ended.wait(20)
            return ""
        threading.Timer(0.2, world.cancel).start()
        with pytest.raises(tokenyard.Cancelled) as caught:
            world.barrier("for nobody")
        ended.set()
        return caught.value.phase

    assert "for nobody" in tokenyard.launch(wait, ranks=2, timeout=20)[0]


def test_two_worlds_in_one_process() -> None:
    def outer(world: tokenyard.World) -> list[int]:
        inner = tokenyard.launch(lambda inside: inside.size, ranks=2)
        world.barrier()
        return inner

    assert tokenyard.launch(outer, ranks=2) == [[2, 2], [2, 2]]


@pytest.mark.parametrize(
    ("wrong", "argument"),
    [
        (dict(device="tpu"), "device"),
        (dict(timeout=0.0), "timeout"),
        (dict(timeout=float("nan")), "timeout"),
        (dict(arena_bytes=-1), "arena_bytes"),
        (dict(arena_bytes="1 GB"), "arena_bytes"),
        (dict(hosts=3), "hosts"),
    ],
)
def test_wrong_settings_are_named(wrong: dict, argument: str) -> None:
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        tokenyard.launch(lambda world: None, ranks=2, **wrong)
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("environment", "argument"),
    [
        (dict(RANK="0", WORLD_SIZE="2"), "MASTER_PORT"),
        (dict(RANK="zero", WORLD_SIZE="2", MASTER_PORT="1234"), "RANK"),
        (dict(RANK="2", WORLD_SIZE="2", MASTER_PORT="1234"), "RANK"),
    ],
)
def test_from_env_names_what_is_missing(
    environment: dict, argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        tokenyard.World.from_env()
    assert caught.value.argument == argument
