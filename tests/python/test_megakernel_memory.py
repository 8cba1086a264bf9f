"""Memory of a graph's tensors lives as long as any object needs it, in any order of destruction.

Each program runs with an allocator that overwrites freed memory, so that a use after free gives a
wrong number or a crash."""

from __future__ import annotations

import os
import textwrap

import pytest
from programs import run_python

SPOILED = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0", "MALLOC_PERTURB_": "165"}

HEAD = """
import gc
import numpy as np
import ml_dtypes
import tokenyard
from tokenyard import megakernel as mk
from tokenyard.megakernel import DecoderShape, DenseDecoder, Graph, Megakernel, TensorMemory

COUNT = 2 << 20  # 8 MiB of float32, which goes back to the system at once.
"""

KERNELS = """
def sum_kernel(world, parts_memory, total_memory):
    \"\"\"Adds two vectors of ones; what its tensors lie in, nobody else keeps.\"\"\"
    parts = parts_memory.local(np.ones(2 * COUNT, np.float32))
    total = total_memory.local(4 * COUNT)
    seen_memory = TensorMemory(world)
    seen, here = seen_memory.visible(np.zeros(2, np.float32))
    graph = Graph(world)
    given = graph.tensor("parts", parts, parts.bytes, given=True)
    summed = graph.tensor("total", total, total.bytes)
    copied = graph.tensor("seen", seen, seen.bytes)
    done = graph.event("done")
    graph.task("reduce", reads=[given.all()], writes=[summed.all()], signals=[done],
               parts=parts, residual=None, y=total, part_count=2, stride=COUNT, count=COUNT)
    graph.task("reduce", reads=[summed.part(4 * COUNT - 8, 4 * COUNT)], writes=[copied.all()],
               waits=[done], parts=total.at(4 * COUNT - 8), residual=None, y=seen,
               part_count=1, stride=2, count=2)
    graph.once()
    return Megakernel(world, graph, workers=2), here

def of_one_memory(world):
    memory = TensorMemory(world)
    return sum_kernel(world, memory, memory)

def of_two_memories(world):
    return sum_kernel(world, TensorMemory(world), TensorMemory(world))

def run(world):
    kernel, here = {build}(world)
    gc.collect()
    kernel.run(1)
    return here.tolist()

print(tokenyard.launch(run, ranks=1))
"""

DECODER = """
SHAPE = DecoderShape(vocabulary=64, hidden=64, layers=1, query_heads=2, kv_heads=2, head_dim=16,
                     inner=128, page_tokens=4, positions_max=8, epsilon=1e-5, rope_base=10000.0)

def build(world, kept):
    drawn = np.random.default_rng(3)
    memory, weights = TensorMemory(world), TensorMemory(world)

    def matrix(*shape):
        return (drawn.standard_normal(shape) / 8).astype(ml_dtypes.bfloat16)

    def plain(*shape):
        return weights.local(matrix(*shape))

    def tiles(*shape):
        return weights.local(mk.tiled(matrix(*shape)))

    layer = mk.LayerPieces(
        attention_norm=plain(64), qkv=tiles(2 * 3 * 16, 64), out=tiles(2, 64, 16),
        mlp_norm=plain(64), gate_up=tiles(128, 2, 64), down=tiles(64, 128),
    )
    decoder = DenseDecoder(
        memory, SHAPE, embedding=plain(64, 64), final_norm=plain(64), head=tiles(64, 64),
        layers=[layer], prompts=[[5]], blocks=2,
    )
    kernel = Megakernel(world, decoder.graph, workers=2, unit_bytes=decoder.unit_bytes)
    if kept is not None:
        kept.extend([weights, decoder, memory])
    return kernel, memory, decoder.logits

def run(world):
    logits = []
    for kept in ([], None):
        kernel, memory, piece = build(world, kept)
        gc.collect()
        kernel.run(3)
        logits.append(memory.read(piece, np.float32, 64))
    assert np.isfinite(logits[0]).all() and logits[0].any()
    return bool((logits[0] == logits[1]).all())

print(tokenyard.launch(run, ranks=1))
"""

PEERS = """
def run(world):
    graph = Graph(world)
    memory = TensorMemory(world)
    ours = memory.shared(4 * COUNT)
    inbox = graph.tensor("inbox", ours[world.rank], 4 * COUNT)
    ones = TensorMemory(world).local(np.ones(COUNT, np.float32))
    given = graph.tensor("ones", ones, ones.bytes, given=True)
    if world.rank == 1:
        graph.task("copy_to_peer", reads=[given.all()], writes=[inbox.all().of(0)],
                   to=ours[0], words=COUNT, **{"from": ones})
    graph.once()
    kernel = Megakernel(world, graph, workers=1)
    if world.rank == 0:  # Its graph has no task, and yet an inbox.
        del memory, ours, inbox, ones, given, graph
        gc.collect()
    others = TensorMemory(world)
    pieces = others.shared(4 * COUNT)  # Not where rank 1 writes.
    kernel.run(1)
    world.barrier()
    return bool(others.read(pieces[world.rank], np.float32, COUNT).any())

print(tokenyard.launch(run, ranks=2, arena_bytes=64 << 20))
"""

PIECES = """
def piece(world):
    return TensorMemory(world).local(64)

def array(world):
    return TensorMemory(world).visible(np.arange(5))[1]

kept = tokenyard.launch({what}, ranks=1)
print(kept[0].tolist() if {what} is array else "kept")
del kept
gc.collect()
print("gone")
"""


def said(program: str, **names: str) -> str:
    """Returns the program's output; fails on a use of freed memory."""
    text = HEAD + textwrap.dedent(program)
    for name, value in names.items():
        text = text.replace("{" + name + "}", value)
    done = run_python("-c", text, env=os.environ | SPOILED)
    assert done.returncode == 0, done.stderr or f"killed by signal {-done.returncode}"
    return done.stdout.strip()


@pytest.mark.parametrize("build", ["of_one_memory", "of_two_memories"])
def test_a_megakernel_keeps_the_memory_of_its_tasks(build: str) -> None:
    assert said(KERNELS, build=build) == "[[2.0, 2.0]]"


def test_a_megakernel_keeps_the_weights_of_its_decoder() -> None:
    assert said(DECODER) == "[True]"


def test_a_megakernel_keeps_what_only_peers_write_to() -> None:
    assert said(PEERS) == "[False, False]"


@pytest.mark.parametrize(("what", "first"), [("piece", "kept"), ("array", "[0, 1, 2, 3, 4]")])
def test_memory_keeps_its_world(what: str, first: str) -> None:
    assert said(PIECES, what=what) == f"{first}\ngone"


RELEASE = """
def run(world):
    piece = TensorMemory(world).local(64)
    try:
        world.release_arena()
        return "released"
    except tokenyard.InvalidArgument as refused:
        del piece
        world.release_arena()
        return refused.seen

print(tokenyard.launch(run, ranks=1))
"""


def test_an_arena_is_not_released_while_a_piece_lives() -> None:
    assert said(RELEASE) == "['1 that need it']"
