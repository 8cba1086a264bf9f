"""A whole decoder as a graph. See `tokenyard.megakernel`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import _tokenyard

from .sizes import size_of
from .task_graph import Graph, Piece, TensorMemory

DecoderShape = _tokenyard.DecoderShape
"""The shape of a model for `DenseDecoder`."""

RopeScaling = _tokenyard.RopeScaling
"""How Llama 3 stretches what turns slowly, for longer contexts."""

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
        self._native = _tokenyard.DenseDecoder.make(
            memory._native,
            shape,
            outer=[embedding, final_norm, head],
            layers=[
                [
                    *(w.attention_norm, w.qkv, w.out, w.mlp_norm, w.gate_up, w.down),
                    *(w.qkv_bias, w.q_norm, w.k_norm),
                ]
                for w in layers
            ],
            windows=[
                NO_WINDOW if w.window is None else size_of("window", w.window, smallest=1)
                for w in layers
            ],
            blocks=blocks,
            prompts=[list(prompt) for prompt in prompts],
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
