"""Dispatch and combine for throughput, in the terms of DeepEP."""

from __future__ import annotations

from typing import NamedTuple

import torch

import tokenyard
from tokenyard.errors import invalid

from .config import Config, tokens_max
from .fp8_rows import pack, unpack
from .handles import DispatchHandle
from .routing import one_expert_a_rank

Rows = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""Tokens, or FP8 tokens and their scales."""
Bias = torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None

TOKENS_LIMIT = 1 << 16
"""No call has more tokens a rank, however large the buffer is."""


class Dispatched(NamedTuple):
    """What `Buffer.dispatch` returns, but for its event."""

    recv_x: Rows
    recv_topk_idx: torch.Tensor | None
    recv_topk_weights: torch.Tensor | None
    num_recv_tokens_per_expert_list: list[int] | None
    handle: DispatchHandle | None


class Throughput:
    """The exchanges of a buffer: one for every shape of call.

    DeepEP says neither how many tokens a call may have nor how wide they are. So the first is taken
    from the size of the buffer, and an exchange is made, by all ranks together, when the first call
    of a width, a number of experts and of picks comes.
    """

    def __init__(self, world: tokenyard.World, num_nvl_bytes: int) -> None:
        self._world = world
        self._num_nvl_bytes = num_nvl_bytes
        self._exchanges: dict[tuple[int, int, int], tokenyard.ExpertParallel] = {}

    def dispatch(
        self,
        x: Rows,
        topk_idx: torch.Tensor | None,
        topk_weights: torch.Tensor | None,
        is_token_in_rank: torch.Tensor | None,
        num_tokens_per_expert: torch.Tensor,
        expert_alignment: int,
        num_worst_tokens: int,
        config: Config,
    ) -> Dispatched:
        experts = num_tokens_per_expert.size(0)
        picks, weights = topk_idx, topk_weights
        if picks is None:
            if is_token_in_rank is None:
                raise invalid("is_token_in_rank", "a tensor, where topk_idx is None", "None")
            picks = one_expert_a_rank(is_token_in_rank, experts // self._world.size)
            weights = torch.ones_like(picks, dtype=torch.float32)
        tokens, scales = x if isinstance(x, tuple) else (x, None)
        exchange = self._exchange(tokens.size(1), experts, picks.size(1), config)
        received = exchange.dispatch(pack(tokens, scales), picks, weights)
        handle = DispatchHandle(exchange, received, is_token_in_rank, num_worst_tokens)
        rows = unpack(received.x, tokens, scales)
        if topk_idx is None:
            counts = self._counts_of(num_tokens_per_expert)
            return Dispatched(rows, None, None, _aligned(counts, expert_alignment), handle)
        ids = received.topk_idx.to(topk_idx.dtype)
        if num_worst_tokens == 0:
            counts = _aligned(received.tokens_per_expert, expert_alignment)
            return Dispatched(rows, ids, received.topk_weights, counts, handle)
        return Dispatched(
            tuple(_padded(part, num_worst_tokens) for part in rows)
            if isinstance(rows, tuple)
            else _padded(rows, num_worst_tokens),
            _padded(ids, num_worst_tokens, -1),
            _padded(received.topk_weights, num_worst_tokens),
            [],
            handle,
        )

    def dispatch_again(self, x: Rows, handle: DispatchHandle) -> Dispatched:
        """The same tokens' other rows, which nothing is counted for."""
        tokens, scales = x if isinstance(x, tuple) else (x, None)
        received = handle.exchange.dispatch(pack(tokens, scales), route=handle.route)
        rows = unpack(received.x, tokens, scales)
        return Dispatched(rows, None, None, None, None)

    def combine(
        self,
        x: torch.Tensor,
        handle: DispatchHandle,
        topk_weights: torch.Tensor | None,
        bias: Bias,
        out: torch.Tensor,
    ) -> torch.Tensor | None:
        """Writes the sums to `out`; returns the weights that came home, if any were given."""
        rows = handle.route.rows_received
        if x.size(0) != handle.rows:
            raise invalid("x", f"the {handle.rows} rows of the dispatch", f"{x.size(0)}")
        weights = None if topk_weights is None else topk_weights[:rows]
        home = handle.exchange.combine(x[:rows], handle.route, weights, out)
        for added in bias if isinstance(bias, tuple) else (bias,):
            if added is not None:
                out.add_(added)
        return home.topk_weights if isinstance(home, tokenyard.Combined) else None

    def close(self) -> None:
        for exchange in self._exchanges.values():
            exchange.close()
        self._exchanges.clear()

    def _exchange(
        self, hidden: int, experts: int, topk: int, config: Config
    ) -> tokenyard.ExpertParallel:
        shape = (hidden, experts, topk)
        if shape not in self._exchanges:
            tokens = tokens_max(self._num_nvl_bytes, 2 * hidden, self._world.size)
            if tokens == 0:
                raise invalid(
                    "num_nvl_bytes",
                    f"room for tokens of {hidden} channels; Config.get_nvl_buffer_size_hint tells"
                    " how much is good",
                    str(self._num_nvl_bytes),
                )
            self._exchanges[shape] = tokenyard.ExpertParallel(
                self._world,
                experts=experts,
                hidden=hidden,
                topk=topk,
                tokens_max=min(tokens, TOKENS_LIMIT),
                sms=config.num_sms,
            )
        return self._exchanges[shape]

    def _counts_of(self, num_tokens_per_expert: torch.Tensor) -> list[int]:
        """Rows that name each expert of this rank, as the ranks tell one another: rows that come
        without ids do not say whose they are."""
        mine = num_tokens_per_expert.to("cpu", torch.int32).numpy()
        everybody = self._world.all_gather(mine.tobytes(), "rows of each expert")
        counts = torch.stack(
            [torch.frombuffer(bytearray(theirs), dtype=torch.int32) for theirs in everybody]
        )
        return counts.sum(0).view(self._world.size, -1)[self._world.rank].tolist()


def _aligned(counts: list[int], alignment: int) -> list[int]:
    return [-(-count // alignment) * alignment for count in counts]


def _padded(tensor: torch.Tensor, rows: int, value: int = 0) -> torch.Tensor:
    """The tensor with rows of `value` after its own, `rows` in all."""
    if tensor.size(0) > rows:
        raise invalid("num_worst_tokens", f"no less than the {tensor.size(0)} received", str(rows))
    padded = tensor.new_full((rows, *tensor.shape[1:]), value)
    padded[: tensor.size(0)] = tensor
    return padded
