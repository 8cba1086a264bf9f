"""Arguments that a DenseDecoder rejects before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tokenyard
from tokenyard.megakernel import (
    DecoderShape,
    DenseDecoder,
    LayerPieces,
    Piece,
    TensorMemory,
    tiled,
)

COUNTS = dict(
    vocabulary=64, hidden=64, layers=1, query_heads=2, kv_heads=2, head_dim=16, inner=128,
    page_tokens=4, positions_max=8,
)  # fmt: skip
NUMBERS = dict(epsilon=1e-5, rope_base=10000.0)


def decoder_of(
    world: tokenyard.World,
    prompts: list[list[int]],
    stop: int | list[int] | None = None,
    extras: dict[str, int] | None = None,
    window: int | None = None,
    **changed: int,
) -> DenseDecoder:
    """Makes a decoder with weights of 0.

    `extras` are elements of biases and norms, `changed` fields of the shape.
    """
    memory = TensorMemory(world)

    def matrix(*shape: int) -> Piece:
        return memory.local(np.zeros(shape, np.uint16))

    def tiles(*shape: int) -> Piece:
        return memory.local(tiled(np.zeros(shape, np.uint16)))

    layer = LayerPieces(
        attention_norm=matrix(64), qkv=tiles(2 * 3 * 16, 64), out=tiles(2, 64, 16),
        mlp_norm=matrix(64), gate_up=tiles(128, 2, 64), down=tiles(64, 128), window=window,
        **{name: matrix(elements) for name, elements in (extras or {}).items()},
    )  # fmt: skip
    return DenseDecoder(
        memory, DecoderShape(**(COUNTS | changed), **NUMBERS), embedding=matrix(64, 64),
        final_norm=matrix(64), head=tiles(64, 64), layers=[layer], prompts=prompts,
        stop=stop,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("prompts", "seen"),
    [
        ([[64]], "64 at position 0 of sequence 0"),
        ([[63], [1, 2**32 - 1]], "4294967295 at position 1 of sequence 1"),
    ],
)
def test_a_token_beyond_the_vocabulary_is_named(prompts: list[list[int]], seen: str) -> None:
    with pytest.raises(tokenyard.InvalidArgument, match="tokens below 64") as caught:
        tokenyard.launch(lambda world: decoder_of(world, prompts), ranks=1)
    assert (caught.value.argument, caught.value.seen) == ("prompts", seen)


@pytest.mark.parametrize("count", COUNTS)
def test_a_count_of_none_is_named(count: str) -> None:
    with pytest.raises(tokenyard.InvalidArgument, match="at least 1") as caught:
        tokenyard.launch(lambda world: decoder_of(world, [[1]], **{count: 0}), ranks=1)
    assert (caught.value.argument, caught.value.seen) == (count, "0")


WHOLE = dict(qkv_bias=2 * 3 * 16, q_norm=16, k_norm=16)


@pytest.mark.parametrize(
    ("given", "argument", "seen"),
    [
        (dict(extras=WHOLE | {"qkv_bias": 95}), "qkv_bias", "190 bytes"),
        (dict(extras=WHOLE | {"q_norm": 32}), "q_norm", "64 bytes"),
        (dict(extras=WHOLE | {"k_norm": 8}), "k_norm", "16 bytes"),
        (dict(extras={"q_norm": 16}), "q_norm", "one of them in layer 0"),
        (dict(window=0), "window", "0"),
        (dict(window=-1), "window", "-1"),
        (dict(window=2**40), "window", str(2**40)),
        (dict(stop=64), "stop_tokens", "64"),
        (dict(stop=[1, -1]), "stop", "-1"),
        (dict(stop=list(range(9))), "stop_tokens", "9"),
    ],
)
def test_extras_that_cannot_be_are_named(given: dict[str, Any], argument: str, seen: str) -> None:
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        tokenyard.launch(lambda world: decoder_of(world, [[1]], **given), ranks=1)
    assert (caught.value.argument, caught.value.seen) == (argument, seen)


def test_a_decoder_with_extras_is_made() -> None:
    def blocks(world: tokenyard.World) -> int:
        return decoder_of(world, [[63]], stop=[3, 4], extras=WHOLE, window=5).blocks

    assert tokenyard.launch(blocks, ranks=1) == [4]


def test_a_decoder_is_made() -> None:
    assert tokenyard.launch(lambda world: decoder_of(world, [[63]]).blocks, ranks=1) == [4]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("wrong", [-1, 2**32, 1.5, "3", None, True], ids=repr)
def test_a_count_is_an_integer(count: str, wrong: object) -> None:
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        DecoderShape(**(COUNTS | {count: wrong}), **NUMBERS)
    assert caught.value.argument == count


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("wrong", ["3", None, True], ids=repr)
def test_a_number_is_one(number: str, wrong: object) -> None:
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        DecoderShape(**COUNTS, **(NUMBERS | {number: wrong}))
    assert caught.value.argument == number


@pytest.mark.parametrize(
    ("named", "wrong"),
    [
        ("memory", dict(memory=None)),
        ("shape", dict(shape=5)),
        ("embedding", dict(embedding=None)),
        ("head", dict(head=np.zeros((64, 64), np.uint16))),
        ("attention_norm", dict(layers=[None])),
        ("prompts", dict(prompts=[[-1]])),
        ("prompts", dict(prompts=[["a"]])),
        ("stop", dict(stop=-1)),
        ("blocks", dict(blocks=-1)),
    ],
)
def test_wrong_arguments_of_a_decoder_get_our_error(named: str, wrong: dict[str, object]) -> None:
    def run(world: tokenyard.World) -> None:
        memory = TensorMemory(world)
        piece = memory.local(np.zeros(64, np.uint16))
        given: dict = dict(memory=memory, shape=DecoderShape(**COUNTS, **NUMBERS), embedding=piece,
                           final_norm=piece, head=piece, layers=[], prompts=[[1]])  # fmt: skip
        DenseDecoder(**(given | wrong))

    with pytest.raises(tokenyard.InvalidArgument) as caught:
        tokenyard.launch(run, ranks=1)
    assert caught.value.argument == named


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int16])
def test_weights_of_another_type_are_named(dtype: type) -> None:
    def run(world: tokenyard.World) -> None:
        memory = TensorMemory(world)
        embedding = memory.local(np.zeros(64 * 64 * 2 // np.dtype(dtype).itemsize, dtype))
        piece = memory.local(np.zeros(64, np.uint16))
        layer = LayerPieces(*[piece] * 6)
        DenseDecoder(memory, DecoderShape(**COUNTS, **NUMBERS), embedding=embedding,
                     final_norm=piece, head=piece, layers=[layer], prompts=[[1]])  # fmt: skip

    with pytest.raises(tokenyard.InvalidArgument, match="elements of bfloat16") as caught:
        tokenyard.launch(run, ranks=1)
    assert caught.value.argument == "embedding"


def test_weights_that_are_not_tiled_are_named() -> None:
    """`out` has fewer columns than a tile: tiled, it takes twice the memory."""

    def run(world: tokenyard.World) -> None:
        memory = TensorMemory(world)
        nothing = memory.local(np.zeros(2 * 64 * 16, np.uint16))
        layer = LayerPieces(*[nothing] * 6)
        shape = DecoderShape(**COUNTS, **NUMBERS)
        DenseDecoder(
            memory, shape, embedding=memory.local(np.zeros((64, 64), np.uint16)),
            final_norm=memory.local(np.zeros(64, np.uint16)),
            head=memory.local(tiled(np.zeros((60, 64), np.uint16))), layers=[layer], prompts=[[1]],
        )  # fmt: skip

    with pytest.raises(tokenyard.InvalidArgument, match="64 elements of BF16") as caught:
        tokenyard.launch(run, ranks=1)
    assert caught.value.argument == "attention_norm"


def test_tiles_hold_every_element_and_zeros() -> None:
    matrix = np.arange(1, 1 + 9 * 40, dtype=np.uint16).reshape(9, 40)
    tiles = tiled(matrix)
    assert tiles.shape == (2, 2, 8, 32)
    back = tiles.swapaxes(1, 2).reshape(16, 64)
    assert (back[:9, :40] == matrix).all()
    assert not back[9:].any()
    assert not back[:, 40:].any()
    assert (tiled(matrix.reshape(3, 3, 40)) == tiles).all()
