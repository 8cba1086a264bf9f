"""Every integer argument of a public function is checked for sign and range before C++ gets it as
unsigned: an InvalidArgument names the argument and the value. The last test finds arguments that
are missing here."""

from __future__ import annotations

import contextlib
import inspect
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ranks import file_store, world_alone

import tokenyard

pytestmark = pytest.mark.filterwarnings("ignore:World.connect is deprecated")

BF16 = ml_dtypes.bfloat16
NEVER = (-1, 2**70, 1.5, True, "3", None)
"""Values that are wrong for any argument; None only where it has no meaning."""
SHAPE = dict(experts=8, hidden=64, topk=2, tokens_max=4)
OTHERS = ("Megakernel", "TaskGraph", "Graph", "Memory", "TensorMemory", "DenseDecoder", "Task")
"""Checked with the megakernel's arguments."""


class Ranks:
    """A job and a world of one rank, and objects made on them."""

    def __init__(self, folder: Path) -> None:
        store = file_store(folder)
        self.job = tokenyard.Collectives.connect(store, secret="s", rank=0, size=1, size_max=2)
        self._end = contextlib.ExitStack()
        self.world = self._end.enter_context(world_alone())
        self.exchange = tokenyard.ExpertParallel(self.world, **SHAPE)
        self.serving = tokenyard.LowLatency(self.world, **SHAPE)
        self.device = tokenyard.DeviceCollectives(self.world)
        self.rows = dict(
            x=np.ones((4, 64), BF16),
            topk_idx=np.tile(np.array([[0, 5]]), (4, 1)),
            topk_weights=np.ones((4, 2), np.float32),
        )
        self.received = self.exchange.dispatch(**self.rows)

    def close(self) -> None:
        self.job.close()
        self.exchange.close()
        self.serving.close()
        self.device.close()
        self._end.close()


def connect_job(ranks: Ranks, /, **wrong: Any) -> Any:
    place = dict(secret="s", rank=0, size=1) | wrong
    return tokenyard.Collectives.connect("file:/nowhere", **place)


def connect_to_job(ranks: Ranks, /, **wrong: Any) -> Any:
    place = dict(secret="s", rank=0, size=1) | wrong
    return tokenyard.connect("file:/nowhere", **place)


def job(method: str) -> Callable[..., Any]:
    return lambda ranks, /, **wrong: getattr(ranks.job.job, method)(**wrong)


def join_job(ranks: Ranks, /, **wrong: Any) -> Any:
    place = dict(secret="s", rank=0, size=1) | wrong
    return tokenyard.Collectives.join("file:/nowhere", **place)


def job_alone(ranks: Ranks, /, **wrong: Any) -> Any:
    return tokenyard.Collectives.alone(**(dict(rank=0, size=1) | wrong))


def connect_world(ranks: Ranks, /, **wrong: Any) -> Any:
    place = dict(host="127.0.0.1", port=0, rank=0, size=1) | wrong
    return tokenyard.World.connect(**place)


def from_env(ranks: Ranks, /, **wrong: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        here = dict(RANK=0, WORLD_SIZE=1, LOCAL_RANK=0, MASTER_ADDR="127.0.0.1")
        for name, value in {**here, "MASTER_PORT": free.getsockname()[1]}.items():
            patch.setenv(name, str(value))
        return tokenyard.World.from_env(**wrong)


def exchange(method: str) -> Callable[..., Any]:
    return lambda ranks, /, **wrong: getattr(ranks.exchange, method)(**(ranks.rows | wrong))


def combine(ranks: Ranks, /, **wrong: Any) -> Any:
    return ranks.exchange.combine(ranks.received.x, ranks.received, **wrong)


def group(method: str, *given: Any) -> Callable[..., Any]:
    return lambda ranks, /, **wrong: getattr(ranks.job.world(), method)(*given, **wrong)


def serving_combine(ranks: Ranks, /, **wrong: Any) -> Any:
    rows = ranks.serving.dispatch(ranks.rows["x"], ranks.rows["topk_idx"], rows="bf16")
    return ranks.serving.combine(rows.x, rows, ranks.rows["topk_weights"], **wrong)


def memory(kind: Any) -> Callable[..., Any]:
    return lambda ranks, /, **wrong: kind.memory(**(SHAPE | dict(ranks=1) | wrong))


def made(kind: Any) -> Callable[..., Any]:
    return lambda ranks, /, **wrong: kind(ranks.world, **(SHAPE | wrong))


def device_collectives(ranks: Ranks, /, **wrong: Any) -> Any:
    return tokenyard.DeviceCollectives(ranks.world, **wrong)


def device(method: str, *given: Any, **usual: Any) -> Callable[..., Any]:
    return lambda ranks, /, **wrong: getattr(ranks.device, method)(*given, **(usual | wrong))


def device_memory(ranks: Ranks, /, **wrong: Any) -> Any:
    return tokenyard.DeviceCollectives.memory(**(dict(ranks=1) | wrong))


ONE = np.ones(4, np.float32)
SIZES = ("experts", "hidden", "topk", "tokens_max")
CALLS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "Collectives.connect": (connect_job, ("rank", "size", "size_max", "eager_limit")),
    "Collectives.join": (join_job, ("rank", "size", "size_max", "eager_limit")),
    "Collectives.alone": (job_alone, ("rank", "size", "eager_limit")),
    "Collectives.evict": (lambda ranks, /, **wrong: ranks.job.evict(**wrong), ("rank",)),
    "Collectives.group": (
        lambda ranks, /, **wrong: ranks.job.group(name="g", **(dict(ranks=[0]) | wrong)),
        ("ranks", "eager_limit"),
    ),
    "Collectives.grow": (lambda ranks, /, **wrong: ranks.job.grow(**wrong), ("ranks",)),
    "Collectives.replace": (lambda ranks, /, **wrong: ranks.job.replace(**wrong), ("rank",)),
    "connect": (connect_to_job, ("rank", "size", "size_max", "local_rank", "eager_limit")),
    "Job.evict": (job("evict"), ("rank",)),
    "Job.grow": (job("grow"), ("ranks",)),
    "Job.replace": (job("replace"), ("rank",)),
    "Job.world": (job("world"), ("arena_bytes",)),
    "DeviceCollectives.__init__": (
        device_collectives,
        ("sms", "slot_bytes", "packet_bytes", "chunk_bytes", "ring_bytes"),
    ),
    "DeviceCollectives.memory": (
        device_memory,
        ("ranks", "slot_bytes", "packet_bytes", "chunk_bytes", "ring_bytes"),
    ),
    "DeviceCollectives.broadcast": (device("broadcast", ONE), ("root",)),
    "DeviceCollectives.reduce": (device("reduce", ONE), ("root",)),
    "DeviceCollectives.gather": (device("gather", ONE, ONE.copy()), ("root",)),
    "DeviceCollectives.scatter": (device("scatter", ONE.copy(), ONE), ("root",)),
    "DeviceCollectives.all_gather": (device("all_gather", ONE, ONE.copy()), ("counts",)),
    "DeviceCollectives.reduce_scatter": (device("reduce_scatter", ONE, ONE.copy()), ("counts",)),
    "DeviceCollectives.all_to_all": (
        device("all_to_all", ONE, ONE.copy(), sent=[4], received=[4]),
        ("sent", "received"),
    ),
    "DeviceCollectives.send": (device("send", ONE, to=0), ("to", "tag")),
    "DeviceCollectives.receive": (device("receive", ONE.copy(), source=0), ("source", "tag")),
    "Group.broadcast": (group("broadcast", ONE), ("root",)),
    "Group.reduce": (group("reduce", ONE), ("root",)),
    "Group.gather": (group("gather", ONE, [ONE]), ("root",)),
    "Group.scatter": (group("scatter", ONE, [ONE]), ("root",)),
    "Group.send": (
        lambda ranks, /, **wrong: ranks.job.world().send(ONE, **(dict(to=0) | wrong)),
        ("to", "tag"),
    ),
    "Group.receive": (group("receive", ONE.copy()), ("source", "tag")),
    "Group.choice": (group("choice", "all_reduce"), ("bytes_",)),
    "ExpertParallel.__init__": (
        made(tokenyard.ExpertParallel),
        (*SIZES, "sms", "sms_max", "places_per_rank", "ring_rows", "chunk_rows"),
    ),
    "ExpertParallel.dispatch": (
        exchange("dispatch"),
        ("scale_channels", "received_tokens_max", "sms"),
    ),
    "ExpertParallel.dispatch_by_expert": (
        exchange("dispatch_by_expert"),
        ("alignment", "rows_max", "scale_channels", "received_tokens_max", "sms"),
    ),
    "ExpertParallel.group_by_expert": (
        lambda ranks, /, **wrong: ranks.exchange.group_by_expert(ranks.received, **wrong),
        ("alignment", "rows_max", "sms"),
    ),
    "ExpertParallel.combine": (combine, ("sms", "local_sms")),
    "ExpertParallel.memory": (
        memory(tokenyard.ExpertParallel),
        (
            *SIZES,
            "ranks",
            "tokens",
            "rows_received",
            "row_bytes",
            "scale_words",
            "sms",
            "sms_max",
            "places_per_rank",
            "hosts",
            "ring_rows",
        ),
    ),
    "ExpertParallel.set_expert_map": (
        lambda ranks, /, **wrong: ranks.exchange.set_expert_map(**wrong),
        ("expert_at",),
    ),
    "LowLatency.__init__": (made(tokenyard.LowLatency), (*SIZES, "sms", "places_per_rank")),
    "LowLatency.dispatch": (
        lambda ranks, /, **wrong: ranks.serving.dispatch(
            ranks.rows["x"], ranks.rows["topk_idx"], rows="bf16", **wrong
        ),
        ("sms",),
    ),
    "LowLatency.combine": (serving_combine, ("sms",)),
    "LowLatency.memory": (
        memory(tokenyard.LowLatency),
        (*SIZES, "ranks", "places_per_rank", "put_ranks"),
    ),
    "LowLatency.evict": (
        lambda ranks, /, **wrong: ranks.serving.evict(**(dict(ranks=[]) | wrong)),
        ("ranks", "epoch"),
    ),
    "LowLatency.set_expert_map": (
        lambda ranks, /, **wrong: ranks.serving.set_expert_map(**wrong),
        ("expert_at",),
    ),
    "LowLatency.restart": (lambda ranks, /, **wrong: ranks.serving.restart(**wrong), ("epoch",)),
    "LowLatency.update_mask": (
        lambda ranks, /, **wrong: ranks.serving.update_mask(masked=True, **wrong),
        ("rank",),
    ),
    "Received.record_stream": (
        lambda ranks, /, **wrong: ranks.received.record_stream(**wrong),
        ("stream",),
    ),
    "StoreServer.__init__": (
        lambda ranks, /, **wrong: tokenyard.StoreServer(secret="s", **wrong),
        ("port",),
    ),
    "World.connect": (connect_world, ("port", "rank", "size", "local_rank", "arena_bytes")),
    "World.from_env": (from_env, ("arena_bytes",)),
    "World.replace": (lambda ranks, /, **wrong: ranks.world.replace(**wrong), ("lost",)),
    "World.rebuild": (lambda ranks, /, **wrong: ranks.world.rebuild(**wrong), ("without",)),
    "spread_lost_experts": (
        lambda ranks, /, **wrong: tokenyard.spread_lost_experts(
            **(dict(expert_at=[0, 1], living=[True]) | wrong)
        ),
        ("expert_at",),
    ),
    "launch": (
        lambda ranks, /, **wrong: tokenyard.launch(int, **(dict(ranks=1) | wrong)),
        ("ranks", "hosts", "arena_bytes"),
    ),
}
ELSEWHERE = {
    "NetworkOptions.__init__": "test_between_hosts.py, where a world is made with them",
    "World.from_torch": "test_from_torch.py, over a group",
    "from_torch": "test_from_torch.py, by World.from_torch, which checks them",
}
MEANT = {
    ("Collectives.connect", "size_max"),
    ("Collectives.group", "eager_limit"),
    ("Collectives.join", "size_max"),
    ("ExpertParallel.memory", "rows_received"),
    ("ExpertParallel.memory", "tokens"),
    ("Group.receive", "source"),
    ("LowLatency.evict", "epoch"),
    ("World.connect", "local_rank"),
    ("connect", "local_rank"),
    ("connect", "size_max"),
}
"""Arguments that may be None."""
LISTS = {
    ("Collectives.group", "ranks"),
    ("DeviceCollectives.all_gather", "counts"),
    ("DeviceCollectives.all_to_all", "received"),
    ("DeviceCollectives.all_to_all", "sent"),
    ("DeviceCollectives.reduce_scatter", "counts"),
    ("ExpertParallel.set_expert_map", "expert_at"),
    ("LowLatency.evict", "ranks"),
    ("LowLatency.set_expert_map", "expert_at"),
    ("World.rebuild", "without"),
    ("World.replace", "lost"),
    ("spread_lost_experts", "expert_at"),
}
"""Lists of ranks or experts, each of which is checked."""
FROM_MINUS_ONE = ("expert_at",)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("name", CALLS)
def test_an_integer_that_cannot_be_is_named(ranks: Ranks, name: str) -> None:
    call, arguments = CALLS[name]
    for argument in arguments:
        for value in NEVER:
            is_list = (name, argument) in LISTS
            if value is None and ((name, argument) in MEANT or is_list):
                continue
            wrong = -2 if value == -1 and argument in FROM_MINUS_ONE else value
            given = [wrong] if is_list else wrong
            with pytest.raises(tokenyard.InvalidArgument) as caught:
                call(ranks, **{argument: given})
            assert caught.value.argument == argument, (value, str(caught.value))
            assert str(wrong) in caught.value.seen, str(caught.value)


def integers(name: str, function: Any) -> Iterator[tuple[str, str]]:
    """Returns a function's integer parameters, by its annotations."""
    for parameter in inspect.signature(function).parameters.values():
        kinds = str(parameter.annotation).replace("|", " ").split()
        if "int" in kinds or "Sequence[int]" in kinds:
            yield name, parameter.name


def test_no_public_integer_is_left_out() -> None:
    public: list[tuple[str, str]] = []
    for name in tokenyard.__all__:
        thing = getattr(tokenyard, name)
        if name in OTHERS or not callable(thing):
            continue
        if not inspect.isclass(thing):
            public += integers(name, thing)
            continue
        if issubclass(thing, BaseException):
            continue
        for member, function in inspect.getmembers(thing):
            ours = inspect.isfunction(function) or inspect.ismethod(function)
            if ours and (member == "__init__" or not member.startswith("_")):
                public += integers(f"{name}.{member}", function)
    checked = {(name, argument) for name, (_, given) in CALLS.items() for argument in given}
    assert len(public) > 50
    assert [one for one in public if one not in checked and one[0] not in ELSEWHERE] == []
