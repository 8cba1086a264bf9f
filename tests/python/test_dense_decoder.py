"""What a DenseDecoder refuses before anything runs."""

from __future__ import annotations

import numpy as np
import pytest

import tokenyard
from tokenyard.megakernel import DecoderShape, DenseDecoder, LayerPieces, Piece, TensorMemory

COUNTS = dict(
    vocabulary=64, hidden=64, layers=1, query_heads=2, kv_heads=2, head_dim=16, inner=128,
    page_tokens=4, positions_max=8,
)  # fmt: skip
NUMBERS = dict(epsilon=1e-5, rope_base=10000.0)


def decoder_of(world: tokenyard.World, prompts: list[list[int]], **changed: int) -> DenseDecoder:
    """Of weights that are all 0; `changed` are counts of the shape."""
    memory = TensorMemory(world)

    def matrix(*shape: int) -> Piece:
        return memory.local(np.zeros(shape, np.uint16))

    layer = LayerPieces(
        attention_norm=matrix(64), qkv=matrix(2 * 3 * 16, 64), out=matrix(2, 64, 16),
        mlp_norm=matrix(64), gate_up=matrix(128, 2, 64), down=matrix(64, 128),
    )  # fmt: skip
    return DenseDecoder(
        memory, DecoderShape(**(COUNTS | changed), **NUMBERS), embedding=matrix(64, 64),
        final_norm=matrix(64), head=matrix(64, 64), layers=[layer], prompts=prompts,
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


def test_a_decoder_is_made() -> None:
    assert tokenyard.launch(lambda world: decoder_of(world, [[63]]).blocks, ranks=1) == [4]
