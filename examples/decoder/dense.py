"""A dense model in the graph of `DenseDecoder`, on one rank or shared by several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenyard.megakernel import (
    DecoderShape,
    DenseDecoder,
    LayerPieces,
    Piece,
    RopeScaling,
    TensorMemory,
    tiled,
)
from tokenyard.world import World

from .config import Config
from .weights import Layer, Weights


def shape_of(config: Config) -> DecoderShape:
    """Returns the shape of a model for the graph."""
    return DecoderShape(
        vocabulary=config.vocab_size,
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        query_heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        inner=config.intermediate_size,
        page_tokens=config.page_tokens,
        positions_max=config.positions_max,
        epsilon=config.rms_norm_eps,
        rope_base=config.rope_theta,
        rope_scaling=_scaling_of(config),
    )


def _scaling_of(config: Config) -> RopeScaling | None:
    scaling = config.rope_scaling
    if scaling is None:
        return None
    return RopeScaling(
        factor=scaling.factor,
        low=scaling.low_freq_factor,
        high=scaling.high_freq_factor,
        positions=scaling.original_max_position_embeddings,
    )


@dataclass(frozen=True)
class Place:
    """A tensor that the host reads."""

    piece: Piece


class DenseGraph:
    """The graph, and the memory of everything in it."""

    def __init__(
        self,
        world: World,
        config: Config,
        weights: Weights,
        *,
        prompts: list[list[int]],
        stops: Sequence[int],
        blocks: int,
    ) -> None:
        self.rank, self.ranks = world.rank, world.size
        self.memory = TensorMemory(world)
        self.decoder = DenseDecoder(
            self.memory,
            shape_of(config),
            embedding=self.memory.local(weights.embedding),
            final_norm=self.memory.local(weights.final_norm),
            head=self._tiled(self._part(weights.head)),
            layers=[
                self._packed(config, layer, config.window(index))
                for index, layer in enumerate(weights.layers)
            ],
            prompts=prompts,
            stop=stops,
            blocks=blocks,
        )
        self.graph = self.decoder.graph
        self.status = Place(self.decoder.status)
        self.tokens = Place(self.decoder.tokens)
        self.logits = Place(self.decoder.logits)

    def _part(self, array: np.ndarray, axis: int = 0) -> np.ndarray:
        """Returns this rank's part of an array."""
        return np.ascontiguousarray(np.split(array, self.ranks, axis)[self.rank])

    def _tiled(self, array: np.ndarray) -> Piece:
        return self.memory.local(tiled(array))

    def _given(self, array: np.ndarray | None) -> Piece | None:
        return None if array is None else self.memory.local(array)

    def _packed(self, config: Config, layer: Layer, window: int | None) -> LayerPieces:
        heads, hidden = config.num_key_value_heads, config.hidden_size
        q = layer.q.reshape(heads, -1, hidden)
        k, v = (rows.reshape(heads, -1, hidden) for rows in (layer.k, layer.v))
        out = layer.out.reshape(hidden, heads, -1).transpose(1, 0, 2)
        gate, up = self._part(layer.gate[0]), self._part(layer.up[0])
        biases = biases_of(config, layer)
        return LayerPieces(
            attention_norm=self.memory.local(layer.attention_norm),
            qkv=self._tiled(np.concatenate([self._part(x) for x in (q, k, v)], axis=1)),
            out=self._tiled(self._part(out)),
            mlp_norm=self.memory.local(layer.mlp_norm),
            gate_up=self._tiled(np.stack([gate, up], axis=1)),
            down=self._tiled(self._part(layer.down[0], axis=1)),
            qkv_bias=self._given(None if biases is None else self._part(biases)),
            q_norm=self._given(layer.q_norm),
            k_norm=self._given(layer.k_norm),
            window=window,
        )


def biases_of(config: Config, layer: Layer) -> np.ndarray | None:
    """Returns biases [KV heads, (query heads per KV head + K and V) * dim], or None."""
    if layer.q_bias is None or layer.k_bias is None or layer.v_bias is None:
        return None
    heads = config.num_key_value_heads
    parts = (layer.q_bias, layer.k_bias, layer.v_bias)
    return np.concatenate([part.reshape(heads, -1) for part in parts], axis=1)
