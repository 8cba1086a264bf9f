"""A dense decoder as a task graph. See `tokenyard.megakernel`."""

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
    """Llama 3's scaling of RoPE's low frequencies, for longer contexts.

    Args:
        factor: divisor of the low frequencies.
        low: turns within `positions` below which a frequency is divided by `factor`
            (`low_freq_factor` of a configuration).
        high: turns above which it is unchanged (`high_freq_factor`).
        positions: context length of the original model; 0 for no scaling.
    """

    def __init__(self, *, factor: float, low: float, high: float, positions: int) -> None:
        super().__init__(
            factor=_real("factor", factor),
            low=_real("low", low),
            high=_real("high", high),
            positions=size_of("positions", positions),
        )


class DecoderShape(_tokenyard.DecoderShape):
    """The shape of a model for `DenseDecoder`.

    Args:
        vocabulary: number of tokens.
        hidden: elements of the residual stream.
        layers: number of layers.
        query_heads, kv_heads: number of heads; query heads are a multiple of KV heads.
        head_dim: elements per head.
        inner: elements of the MLP's hidden layer.
        page_tokens: positions per page of the KV cache.
        positions_max: largest number of positions per sequence.
        epsilon: RMSNorm's epsilon.
        rope_base: RoPE's base frequency.
        rope_scaling: None for plain RoPE.
    """

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
        """Returns the largest number of blocks per rank that can share the stages; 0 if none."""
        return super().blocks_of(
            size_of("multiprocessors", multiprocessors), size_of("ranks", ranks, smallest=1)
        )

    def check(self, blocks: int, ranks: int = 1) -> None:
        """Raises InvalidArgument if the tasks cannot run this shape on `blocks` blocks per rank."""
        super().check(size_of("blocks", blocks), size_of("ranks", ranks, smallest=1))


def _real(argument: str, value: float) -> float:
    """Returns `value` as a float; raises InvalidArgument if it is no number."""
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        raise invalid(argument, "a number", repr(value))
    return float(value)


NO_WINDOW = 0xFFFFFFFF
TILE_ROWS, TILE_COLUMNS = 8, 32


def tiled(matrix: np.ndarray) -> np.ndarray:
    """Returns a copy of a matrix in tiles of 8 rows and 32 columns, as `DenseDecoder` reads it.

    Args:
        matrix: [..., columns]; all dimensions but the last count as rows.

    Returns:
        [ceil(rows / 8), ceil(columns / 32), 8, 32], padded with zeros.
    """
    rows = matrix.reshape(-1, matrix.shape[-1])
    missing = (-rows.shape[0] % TILE_ROWS, -rows.shape[1] % TILE_COLUMNS)
    whole = np.pad(rows, [(0, end) for end in missing]) if any(missing) else rows
    bands, columns = len(whole) // TILE_ROWS, whole.shape[1] // TILE_COLUMNS
    tiles = whole.reshape(bands, TILE_ROWS, columns, TILE_COLUMNS).swapaxes(1, 2)
    return np.ascontiguousarray(tiles)


@dataclass(frozen=True)
class LayerPieces:
    """A rank's part of one layer's weights, all BF16; matrices are `tiled`."""

    attention_norm: Piece
    """[hidden]"""
    qkv: Piece
    """[KV heads of the rank, query heads per KV head + K and V, dim, hidden], tiled"""
    out: Piece
    """[KV heads of the rank, hidden, query heads per KV head * dim], tiled"""
    mlp_norm: Piece
    """[hidden]"""
    gate_up: Piece
    """[inner of the rank, 2 (gate, up), hidden], tiled"""
    down: Piece
    """[hidden, inner of the rank], tiled"""
    qkv_bias: Piece | None = None
    """[KV heads of the rank, query heads per KV head + K and V, dim], added to qkv's products"""
    q_norm: Piece | None = None
    """[dim] RMSNorm weights of each query head before RoPE; requires `k_norm`"""
    k_norm: Piece | None = None
    """[dim] RMSNorm weights of each key before RoPE; requires `q_norm`"""
    window: int | None = None
    """Number of latest positions that a token attends to, its own included; None: all"""


def _tokens_of(stop: int | Sequence[int] | None) -> list[int]:
    if stop is None:
        return []
    tokens = list(stop) if isinstance(stop, Sequence) else [stop]
    return [size_of("stop", token) for token in tokens]


LAYER_WEIGHTS = ("attention_norm", "qkv", "out", "mlp_norm", "gate_up", "down")
MORE_WEIGHTS = ("qkv_bias", "q_norm", "k_norm")
"""Optional weights of a layer."""


def _weights(name: str, piece: Any) -> Piece:
    if not isinstance(piece, Piece):
        raise invalid(name, "a Piece of a TensorMemory", repr(piece))
    return piece


def _weights_or_none(name: str, piece: Any) -> Piece | None:
    return None if piece is None else _weights(name, piece)


class DenseDecoder:
    """A decode step of a Llama-shaped model as a task graph. Collective.

    Its stages pass data in words that carry their own flags, with no fence between them. The model
    is tensor parallel over the ranks of the memory's world: of R ranks, each holds 1/R of the KV
    heads, of the inner elements and of the vocabulary of the head, in order of rank.

    Args:
        memory: allocates the decoder's tensors.
        shape: shape of the whole model; `shape.check(blocks, ranks)` raises if it is unsupported.
        embedding: [vocabulary, hidden] BF16.
        final_norm: [hidden] BF16.
        head: [this rank's part of the vocabulary, hidden] BF16, `tiled`.
        layers: this rank's part of each layer's weights.
        prompts: first tokens of 1, 2, 4 or 8 sequences, decoded as one batch; the same on all
            ranks.
        stop: token that ends a sequence, or up to 8 such tokens. The loop ends once all sequences
            have ended.
        blocks: blocks that share each stage, one worker each; 0: chosen.

    Raises:
        InvalidArgument: the tasks do not support the shape, or a weight has another size.
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
        """Number of workers that its megakernel needs."""
        return self._native.blocks

    @property
    def unit_bytes(self) -> int:
        """Bytes per unit that its tasks stream; pass it to `Megakernel`."""
        return self._native.unit_bytes

    @property
    def logits(self) -> Piece:
        """[sequences, this rank's part of the vocabulary] float32: logits of the last step."""
        return self._native.logits

    @property
    def tokens(self) -> Piece:
        """[sequences, positions_max + 1] uint32: tokens decided so far, by position."""
        return self._native.tokens

    @property
    def status(self) -> Piece:
        """[sequences] state: 0 running, 1 stopped, 2 cache full, 3 not a number."""
        return self._native.status
