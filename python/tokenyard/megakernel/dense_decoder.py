"""A whole decoder as a graph. See `tokenyard.megakernel`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import _tokenyard

from ..errors import invalid
from ..sizes import size_of
from .task_graph import Graph, Piece, TensorMemory


class RopeScaling(_tokenyard.RopeScaling):
    """How Llama 3 stretches what turns slowly, for longer contexts."""

    def __init__(self, *, factor: float, low: float, high: float, positions: int) -> None:
        super().__init__(
            factor=_real("factor", factor),
            low=_real("low", low),
            high=_real("high", high),
            positions=size_of("positions", positions),
        )


class DecoderShape(_tokenyard.DecoderShape):
    """The shape of a model for `DenseDecoder`."""

    def __init__(
        self,
        *,
        vocabulary: int,
        hidden: int,
        layers: int,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
        inner: int,
        page_tokens: int,
        positions_max: int,
        epsilon: float,
        rope_base: float,
        rope_scaling: RopeScaling | None = None,
    ) -> None:
        if not isinstance(rope_scaling, RopeScaling | None):
            raise invalid("rope_scaling", "a RopeScaling or None", repr(rope_scaling))
        super().__init__(
            vocabulary=size_of("vocabulary", vocabulary),
            hidden=size_of("hidden", hidden),
            layers=size_of("layers", layers),
            query_heads=size_of("query_heads", query_heads),
            kv_heads=size_of("kv_heads", kv_heads),
            head_dim=size_of("head_dim", head_dim),
            inner=size_of("inner", inner),
            page_tokens=size_of("page_tokens", page_tokens),
            positions_max=size_of("positions_max", positions_max),
            epsilon=_real("epsilon", epsilon),
            rope_base=_real("rope_base", rope_base),
            rope_scaling=rope_scaling,
        )

    def blocks_of(self, multiprocessors: int, ranks: int = 1) -> int:
        """The most blocks per rank among which the stages can be dealt out; 0: none."""
        return super().blocks_of(
            size_of("multiprocessors", multiprocessors), size_of("ranks", ranks, smallest=1)
        )

    def check(self, blocks: int, ranks: int = 1) -> None:
        """Raises InvalidArgument naming what the tasks cannot do on so many blocks per rank."""
        super().check(size_of("blocks", blocks), size_of("ranks", ranks, smallest=1))


def _real(argument: str, value: float) -> float:
    """`value` as a float; raises InvalidArgument if it is no number."""
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        raise invalid(argument, "a number", repr(value))
    return float(value)


NO_WINDOW = 0xFFFFFFFF
TILE_ROWS, TILE_COLUMNS = 8, 32


def tiled(matrix: np.ndarray) -> np.ndarray:
    """A matrix as the tasks of `DenseDecoder` read it: in tiles of 8 rows and 32 columns.

    Args:
        matrix: [..., columns]; all dimensions before the last are rows.

    Returns:
        [rows / 8, columns / 32, 8, 32], of as many whole tiles as it takes, with zeros where there
        is nothing. A copy.
    """
    rows = matrix.reshape(-1, matrix.shape[-1])
    missing = (-rows.shape[0] % TILE_ROWS, -rows.shape[1] % TILE_COLUMNS)
    whole = np.pad(rows, [(0, end) for end in missing]) if any(missing) else rows
    bands, columns = len(whole) // TILE_ROWS, whole.shape[1] // TILE_COLUMNS
    tiles = whole.reshape(bands, TILE_ROWS, columns, TILE_COLUMNS).swapaxes(1, 2)
    return np.ascontiguousarray(tiles)


@dataclass(frozen=True)
class LayerPieces:
    """Where a layer's weights lie, all BF16, packed as the tasks read them: matrices `tiled`."""

    attention_norm: Piece
    """[hidden]"""
    qkv: Piece
    """[KV heads of the rank, its query heads and K and V, dim, hidden], tiled"""
    out: Piece
    """[KV heads of the rank, hidden, its query heads * dim], tiled"""
    mlp_norm: Piece
    """[hidden]"""
    gate_up: Piece
    """[inner of the rank, gate and up, hidden], tiled"""
    down: Piece
    """[hidden, inner of the rank], tiled"""
    qkv_bias: Piece | None = None
    """[KV heads of the rank, its query heads and K and V, dim], added to their products"""
    q_norm: Piece | None = None
    """[dim] weights of RMSNorm of each query head before it rotates; with `k_norm` or not at all"""
    k_norm: Piece | None = None
    """[dim] likewise of each key"""
    window: int | None = None
    """Latest positions that a token attends to, its own included; None: all"""


def _tokens_of(stop: int | Sequence[int] | None) -> list[int]:
    if stop is None:
        return []
    tokens = list(stop) if isinstance(stop, Sequence) else [stop]
    return [size_of("stop", token) for token in tokens]


LAYER_WEIGHTS = ("attention_norm", "qkv", "out", "mlp_norm", "gate_up", "down")
MORE_WEIGHTS = ("qkv_bias", "q_norm", "k_norm")
"""Those that a layer may lack."""


def _weights(name: str, piece: Any) -> Piece:
    if not isinstance(piece, Piece):
        raise invalid(name, "a Piece of a TensorMemory", repr(piece))
    return piece


def _weights_or_none(name: str, piece: Any) -> Piece | None:
    return None if piece is None else _weights(name, piece)


class DenseDecoder:
    """A Llama-shaped step as a graph whose stages hand on words: the fastest.

    The ranks of the memory's world share the model (tensor parallel), and all of them make it: of R
    ranks, rank r has the r-th R-th of the KV heads, of the inner elements and of the head's tokens.

    Args:
        memory: where its tensors go.
        shape: of the whole model; `shape.check(blocks, ranks)` names what the tasks cannot do.
        embedding, final_norm, head: [vocabulary, hidden], [hidden], [this rank's part of the
            vocabulary, hidden] and `tiled`; BF16.
        layers: this rank's part of the layers' weights.
        prompts: the first tokens of 1, 2, 4 or 8 sequences, decoded side by side; alike on all
            ranks.
        stop: the token that ends a sequence, or up to 8 of which any does. The loop ends when all
            sequences have ended.
        blocks: that share each stage, one worker each; 0 leaves it to Tokenyard.

    Raises:
        InvalidArgument: a shape that the tasks cannot do, or weights of another size.
    """

    def __init__(
        self,
        memory: TensorMemory,
        shape: DecoderShape,
        *,
        embedding: Piece,
        final_norm: Piece,
        head: Piece,
        layers: Sequence[LayerPieces],
        prompts: Sequence[Sequence[int]],
        stop: int | Sequence[int] | None = None,
        blocks: int = 0,
    ) -> None:
        for argument, value, kind in [
            ("memory", memory, TensorMemory),
            ("shape", shape, DecoderShape),
        ]:
            if not isinstance(value, kind):
                raise invalid(argument, f"a {kind.__name__}", repr(value))
        outer = {"embedding": embedding, "final_norm": final_norm, "head": head}
        self._native = _tokenyard.DenseDecoder.make(
            memory._native,
            shape,
            outer=[_weights(name, piece) for name, piece in outer.items()],
            layers=[
                [
                    *(_weights(name, getattr(layer, name, None)) for name in LAYER_WEIGHTS),
                    *(_weights_or_none(name, getattr(layer, name, None)) for name in MORE_WEIGHTS),
                ]
                for layer in layers
            ],
            windows=[
                NO_WINDOW if layer.window is None else size_of("window", layer.window, smallest=1)
                for layer in layers
            ],
            blocks=size_of("blocks", blocks),
            prompts=[[size_of("prompts", token) for token in prompt] for prompt in prompts],
            stop_tokens=_tokens_of(stop),
        )
        self.graph = Graph._of(self._native.graph)

    @property
    def blocks(self) -> int:
        """Workers that its megakernel needs."""
        return self._native.blocks

    @property
    def unit_bytes(self) -> int:
        """Of what its tasks stream."""
        return self._native.unit_bytes

    @property
    def logits(self) -> Piece:
        """Of the last step: [sequences, this rank's part of the vocabulary] float32."""
        return self._native.logits

    @property
    def tokens(self) -> Piece:
        """What has been decided, by position: [sequences, positions_max + 1] uint32."""
        return self._native.tokens

    @property
    def status(self) -> Piece:
        """[sequences] how they stand: 0 goes on, 1 stopped, 2 cache full, 3 not a number."""
        return self._native.status
