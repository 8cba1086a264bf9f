"""A decode step as a task graph, on one rank or several (tensor parallel).

    embed -> per layer: qkv -> attention -> out [-> copies -> sums] ->
             gate/up -> down [-> copies -> sums]                    -> logits -> best -> next token

A rank holds a part of the heads, of the feed-forward's inner rows and of the vocabulary. Every rank
receives the others' partial sums and adds them in the order of the ranks, so that all have the same
bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tokenyard.megakernel import Event, Tensor
from tokenyard.world import World

from .config import Config
from .dense import biases_of
from .tiles import F32, UNIT_BYTES, TiledGraph, slice_of
from .weights import Layer, Weights

NO_TOKEN = NO_WINDOW = 0xFFFFFFFF
STOP_TOKENS_MAX = 8


class DecodeGraph(TiledGraph):
    """One rank's graph of a decode step."""

    def __init__(
        self,
        world: World,
        config: Config,
        weights: Weights,
        *,
        prompt: list[int],
        stops: Sequence[int],
        tiles: int,
    ) -> None:
        super().__init__(world, tiles=tiles, epsilon=config.rms_norm_eps)
        self.config = config
        self._make_words(prompt)
        hidden = config.hidden_size
        self.x = self._scratch("x", hidden)
        self.after_attention = self._scratch("x after attention", hidden)
        self.heads = config.num_key_value_heads // self.ranks
        head_words = (config.group + 2) * config.head_dim
        self.qkv = self._scratch("qkv", self.heads * head_words)
        self.attended = self._scratch("attended", self.heads * config.group * config.head_dim)
        self.inner = config.intermediate_size // self.ranks
        self.expert_inner = config.moe_intermediate_size // self.ranks
        self.h = self._scratch("h", self.inner)
        if config.num_local_experts:
            picked = config.num_experts_per_tok * self.expert_inner
            self.expert_h = self._scratch("experts' h", picked)

        ready = self._embed(weights)
        for index, layer in enumerate(weights.layers):
            ready = self._layer(index, layer, ready)
        self._next_token(weights, ready, prompt, stops)

    def _make_words(self, prompt: list[int]) -> None:
        """Makes the state that is kept between iterations."""

        def words(name: str, values: list[int]) -> Tensor:
            return self._given(name, np.array(values, np.uint32))

        positions = self.config.positions_max
        self.token = words("token", prompt[:1])
        self.position = words("position", [0])
        self.tokens = words("tokens", prompt[:1] + [0] * positions)
        self.prompt = words("prompt", prompt)
        self.status = words("status", [0])
        pages = np.random.default_rng(7).permutation(positions // self.config.page_tokens)
        self.pages = words("pages", pages.tolist())
        self.frequencies = self._given("frequencies", self.config.rope_frequencies())

    def _embed(self, weights: Weights) -> Event:
        embedded = self.graph.event("embedded")
        table = self._given("embedding", weights.embedding)
        self.graph.task(
            "embed",
            name="embed",
            reads=[table.all(), self.token.all()],
            writes=[self.x.all()],
            signals=[embedded],
            table=table.piece,
            token=self.token.piece,
            x=self.x.piece,
            hidden=self.config.hidden_size,
        )
        return embedded

    def _layer(self, index: int, layer: Layer, ready: Event) -> Event:
        own = slice(self.rank * self.heads, (self.rank + 1) * self.heads)
        hidden = self.config.hidden_size
        q = layer.q.reshape(self.config.num_key_value_heads, -1, hidden)
        qkv = np.concatenate([q[own], layer.k[own], layer.v[own]], axis=1).reshape(-1, hidden)
        norm = self._given(f"attention norm {index}", layer.attention_norm)
        biases = biases_of(self.config, layer)
        added = None
        if biases is not None:  # Added like a residual.
            added = self._given(f"biases {index}", biases[own].reshape(-1).astype(np.float32))
        ready = self._linear(
            f"qkv {index}", qkv, self.x, self.qkv, ready, norm=norm, residual=added
        )
        ready = self._attention(index, layer, ready)
        heads = slice(own.start * self.config.group, own.stop * self.config.group)
        out = np.ascontiguousarray(layer.out[:, heads]).reshape(hidden, -1)
        ready = self._summed(
            f"out {index}", self.x, self.after_attention,
            lambda y, residual: self._linear(
                f"out {index}", out, self.attended, y, ready, residual=residual
            ),
        )  # fmt: skip
        mlp_norm = self._given(f"mlp norm {index}", layer.mlp_norm)
        feed_forward = self._dense if layer.router is None else self._experts
        return self._summed(
            f"down {index}", self.after_attention, self.x,
            lambda y, residual: feed_forward(index, layer, mlp_norm, ready, y, residual),
        )  # fmt: skip

    def _attention(self, index: int, layer: Layer, ready: Event) -> Event:
        config = self.config
        norms = [
            None if norm is None else self._given(f"{name} norm {index}", norm)
            for name, norm in (("q", layer.q_norm), ("k", layer.k_norm))
        ]
        window = config.window(index)
        done = self.graph.event(f"attention {index}")
        words = (config.group + 2) * config.head_dim
        cached = config.positions_max * config.head_dim * 2
        for head in range(self.heads):
            cache = [
                self.graph.tensor(
                    f"{kind} {index} {head}", self.memory.local(cached), cached, given=True
                )
                for kind in ("keys", "values")
            ]
            q = self.qkv.piece.at(head * words * F32)
            out_words = config.group * config.head_dim
            self.graph.task(
                "attention",
                name=f"attention {index} {head}",
                reads=[
                    slice_of(self.qkv, head * words, words),
                    self.pages.all(),
                    self.position.all(),
                    self.frequencies.all(),
                    *(tensor.all() for tensor in cache),
                    *(norm.all() for norm in norms if norm),
                ],
                writes=[
                    slice_of(self.attended, head * out_words, out_words),
                    *(tensor.all() for tensor in cache),
                ],
                waits=[ready],
                signals=[done],
                cost_ns=5000,
                q=q,
                k=q.at(config.group * config.head_dim * F32),
                v=q.at((config.group + 1) * config.head_dim * F32),
                k_cache=cache[0].piece,
                v_cache=cache[1].piece,
                pages=self.pages.piece,
                position=self.position.piece,
                out=self.attended.piece.at(head * out_words * F32),
                group=config.group,
                dim=config.head_dim,
                page_tokens=config.page_tokens,
                frequencies=self.frequencies.piece,
                q_norm=norms[0].piece if norms[0] else None,
                k_norm=norms[1].piece if norms[1] else None,
                window=NO_WINDOW if window is None else window,
                epsilon=self.epsilon,
            )
        return done

    def _dense(
        self,
        index: int,
        layer: Layer,
        norm: Tensor,
        ready: Event,
        y: Tensor,
        residual: Tensor | None,
    ) -> Event:
        own = slice(self.rank * self.inner, (self.rank + 1) * self.inner)
        gated = np.stack([layer.gate[0, own], layer.up[0, own]], axis=1)
        done = self.graph.event(f"gate/up {index}")
        columns = self.config.hidden_size
        matrix = self._given(f"gate/up {index} weights", np.ascontiguousarray(gated))
        for first, count in self._tiles(self.inner):
            self.graph.task(
                "gated_linear",
                name=f"gate/up {index} {first}",
                reads=[self.after_attention.all(), norm.all()],
                writes=[slice_of(self.h, first, count)],
                streams=[matrix.part(first * columns * 4, (first + count) * columns * 4)],
                waits=[ready],
                signals=[done],
                cost_ns=1000 + count * columns // 8,
                weights=matrix.piece.at(first * columns * 4),
                x=self.after_attention.piece,
                norm=norm.piece,
                h=self.h.piece.at(first * F32),
                rows=count,
                columns=columns,
                unit_bytes=UNIT_BYTES,
                epsilon=self.epsilon,
            )
        down = np.ascontiguousarray(layer.down[0][:, own])
        return self._linear(f"down {index}", down, self.h, y, done, residual=residual)

    def _experts(
        self,
        index: int,
        layer: Layer,
        norm: Tensor,
        ready: Event,
        y: Tensor,
        residual: Tensor | None,
    ) -> Event:
        assert layer.router is not None
        config, hidden, topk = self.config, self.config.hidden_size, self.config.num_experts_per_tok
        experts = config.num_local_experts
        scores = self._scratch(f"scores {index}", experts)
        picks = self._scratch(f"picks {index}", topk)
        pick_weights = self._scratch(f"pick weights {index}", topk)
        scored = self._linear(
            f"router {index}", layer.router, self.after_attention, scores, ready, norm=norm
        )
        routed, gated, done = (
            self.graph.event(f"{what} {index}") for what in ("routed", "experts' h", "experts")
        )
        self.graph.task(
            "route_token",
            name=f"route {index}",
            reads=[scores.all()],
            writes=[picks.all(), pick_weights.all()],
            waits=[scored],
            signals=[routed],
            scores=scores.piece,
            picks=picks.piece,
            weights=pick_weights.piece,
            experts=experts,
            topk=topk,
            normalised=int(config.norm_topk_prob),
        )
        inner = self.expert_inner
        own = slice(self.rank * inner, (self.rank + 1) * inner)
        pairs = np.stack([layer.gate[:, own], layer.up[:, own]], axis=2)
        matrix = self._given(f"experts' gate/up {index}", np.ascontiguousarray(pairs))
        for pick in range(topk):
            for first, count in self._tiles(inner):
                self.graph.task(
                    "expert_gated",
                    name=f"expert gate/up {index} {pick} {first}",
                    reads=[matrix.all(), self.after_attention.all(), norm.all(), picks.all()],
                    writes=[slice_of(self.expert_h, pick * inner + first, count)],
                    waits=[routed],
                    signals=[gated],
                    cost_ns=1000 + count * hidden // 8,
                    weights=matrix.piece,
                    x=self.after_attention.piece,
                    norm=norm.piece,
                    picks=picks.piece,
                    h=self.expert_h.piece,
                    pick=pick,
                    first_row=first,
                    rows=count,
                    expert_rows=inner,
                    columns=hidden,
                    epsilon=self.epsilon,
                )
        down = self._given(f"experts' down {index}", np.ascontiguousarray(layer.down[:, :, own]))
        for first, count in self._tiles(hidden):
            inputs = [down.all(), self.expert_h.all(), picks.all(), pick_weights.all()]
            self.graph.task(
                "expert_down",
                name=f"expert down {index} {first}",
                reads=inputs + ([slice_of(residual, first, count)] if residual else []),
                writes=[slice_of(y, first, count)],
                waits=[gated],
                signals=[done],
                cost_ns=1000 + topk * count * inner // 16,
                weights=down.piece,
                h=self.expert_h.piece,
                picks=picks.piece,
                pick_weights=pick_weights.piece,
                residual=residual.piece if residual else None,
                y=y.piece,
                topk=topk,
                first_row=first,
                rows=count,
                expert_rows=inner,
                hidden=hidden,
            )
        return done

    def _summed(
        self,
        name: str,
        residual: Tensor,
        y: Tensor,
        product: Callable[[Tensor, Tensor | None], Event],
    ) -> Event:
        """Adds tasks for y = residual + the sum of all ranks' products."""
        if self.ranks == 1:
            return product(y, residual)
        hidden = self.config.hidden_size
        # A buffer per sum: a later sum must not write it while a copy to another rank still reads.
        partial = self._scratch(f"{name} partial sums", hidden)
        mine = product(partial, None)
        parts, arrived = self._to_every_rank(name, partial, hidden, mine)
        summed = self.graph.event(f"{name} summed")
        for first, count in self._tiles(hidden):
            self.graph.task(
                "reduce",
                name=f"{name} sum {first}",
                reads=[
                    slice_of(residual, first, count),
                    *(slice_of(parts, rank * hidden + first, count) for rank in range(self.ranks)),
                ],
                writes=[slice_of(y, first, count)],
                waits=[arrived],
                signals=[summed],
                parts=parts.piece.at(first * F32),
                residual=residual.piece.at(first * F32),
                y=y.piece.at(first * F32),
                part_count=self.ranks,
                stride=hidden,
                count=count,
            )
        return summed

    def _next_token(
        self, weights: Weights, ready: Event, prompt: list[int], stops: Sequence[int]
    ) -> None:
        vocabulary = self.config.vocab_size // self.ranks
        first_token = self.rank * vocabulary
        norm = self._given("final norm", weights.final_norm)
        logits = self._scratch("logits", vocabulary)
        head = np.ascontiguousarray(weights.head[first_token : first_token + vocabulary])
        ready = self._linear("logits", head, self.x, logits, ready, norm=norm)
        self.logits = logits

        tiles = list(self._tiles(vocabulary))
        best = self._scratch("best", len(tiles) * 2)
        picked = self.graph.event("best")
        for index, (first, count) in enumerate(tiles):
            self.graph.task(
                "pick_best",
                name=f"best {first}",
                reads=[slice_of(logits, first, count)],
                writes=[slice_of(best, 2 * index, 2)],
                waits=[ready],
                signals=[picked],
                logits=logits.piece.at(first * F32),
                best=best.piece.at(index * 2 * F32),
                count=count,
                first_token=first_token + first,
            )
        parts, arrived = self._to_every_rank("best", best, len(tiles) * 2, picked)
        decided = self.graph.event("decided")
        words = (self.token, self.position, self.tokens, self.status)
        no_more = [NO_TOKEN] * (STOP_TOKENS_MAX - len(stops))
        stop_tokens: dict[str, Any] = {
            f"stop_tokens[{i}]": token for i, token in enumerate([*stops, *no_more])
        }
        self.graph.task(
            "next_token",
            name="next token",
            reads=[parts.all(), self.prompt.all(), *(word.all() for word in words)],
            writes=[word.all() for word in words],
            waits=[arrived],
            signals=[decided],
            parts=parts.piece,
            token=self.token.piece,
            position=self.position.piece,
            tokens=self.tokens.piece,
            prompt=self.prompt.piece,
            status=self.status.piece,
            sums=None,
            broken=None,
            sum_count=0,
            part_count=self.ranks * len(tiles),
            positions_max=self.config.positions_max,
            prompt_tokens=len(prompt),
            **stop_tokens,
        )
        self.graph.loop_on(decided)
