"""DeepEP's throughput dispatch and combine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

import tokenyard
from tokenyard.errors import invalid

from .config import Config, tokens_max
from .expert_ranks import first_experts
from .handles import DispatchHandle
from .rdma_ranks import RdmaRanks
from .routing import one_expert_a_rank

Rows = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""Tokens, or FP8 tokens and their scales."""
Bias = torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None

TOKENS_LIMIT = 1 << 16
"""Largest number of tokens per rank and call, however large the buffer is."""
SMS_MAX = 32
"""Largest number of multiprocessors per call: fewer saturate the links."""


class Dispatched(NamedTuple):
    """The results of `Buffer.dispatch` without the event."""

    recv_x: Rows
    recv_topk_idx: torch.Tensor | None
    recv_topk_weights: torch.Tensor | None
    num_recv_tokens_per_expert_list: list[int] | None
    handle: DispatchHandle | None


class Throughput:
    """The exchanges of a buffer, one per shape of call.

    DeepEP's API states neither the tokens per call nor their width. So the number of tokens follows
    from the size of the buffer, and all ranks make an exchange together at the first call with its
    width, number of experts and topk.
    """

    def __init__(self, world: tokenyard.World, hosts: RdmaRanks, room: int) -> None:
        self._world, self._hosts = world, hosts
        self._room = room
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
        choices = topk_idx
        if choices is None:
            if is_token_in_rank is None:
                raise invalid("is_token_in_rank", "a tensor, where topk_idx is None", "None")
            choices = one_expert_a_rank(is_token_in_rank, experts)
        tokens, scales = _parts(x)
        exchange = self._exchange(tokens.size(1), experts, choices.size(1), config)
        received = exchange.dispatch(
            tokens,
            choices,
            topk_weights,
            scales=scales,
            received_tokens_max=num_worst_tokens,
            sms=_sms(config),
        )
        rows = received.x if received.scales is None else (received.x, received.scales)
        spans_hosts = self._hosts.count > 1
        handle = DispatchHandle(exchange, received, is_token_in_rank, spans_hosts)
        if topk_idx is None:
            counts = [] if num_worst_tokens else self._counts_of(num_tokens_per_expert)
            return Dispatched(rows, None, None, _aligned(counts, expert_alignment), handle)
        return Dispatched(
            rows,
            received.topk_idx.to(topk_idx.dtype),
            None if topk_weights is None else received.topk_weights,
            _aligned(received.tokens_per_expert, expert_alignment),
            handle,
        )

    def dispatch_again(self, x: Rows, handle: DispatchHandle, config: Config) -> Dispatched:
        """Dispatches other rows of the same tokens, without an exchange of counts."""
        tokens, scales = _parts(x)
        received = handle.exchange.dispatch(
            tokens, route=handle.route, scales=scales, sms=_sms(config)
        )
        rows = received.x if received.scales is None else (received.x, received.scales)
        return Dispatched(rows, None, None, None, None)

    def combine(
        self,
        x: torch.Tensor,
        handle: DispatchHandle,
        topk_weights: torch.Tensor | None,
        bias: Bias,
        out: torch.Tensor,
        config: Config,
    ) -> torch.Tensor | None:
        """Writes the sums to `out`; returns the summed weights, if any were given."""
        home = handle.exchange.combine(
            x, handle.route, topk_weights, out=out, bias=bias, sms=_sms(config)
        )
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
            tokens = tokens_max(self._room, 2 * hidden, self._world.size)
            if tokens == 0:
                raise invalid(
                    "num_nvl_bytes",
                    f"room for tokens of {hidden} channels, as Config.get_nvl_buffer_size_hint"
                    " returns",
                    f"{self._room} bytes",
                )
            self._exchanges[shape] = tokenyard.ExpertParallel(
                self._world,
                experts=experts,
                hidden=hidden,
                topk=topk,
                tokens_max=min(tokens, TOKENS_LIMIT),
                sms_max=SMS_MAX,
                ring_rows=config.ring_rows(self._hosts.count, 2 * hidden),
                chunk_rows=config.chunk_rows(self._hosts.count),
            )
        return self._exchanges[shape]

    def _counts_of(self, num_tokens_per_expert: torch.Tensor) -> list[int]:
        """Returns the rows per expert of this rank, which the ranks exchange.

        Rows without ids do not carry that information.
        """
        mine = num_tokens_per_expert.to("cpu", torch.int32).numpy()
        everybody = self._world.all_gather(mine.tobytes(), "rows of each expert")
        counts = sum(np.frombuffer(theirs, np.int32) for theirs in everybody)
        first = first_experts(len(counts), self._world.size).tolist()
        return counts[first[self._world.rank] : first[self._world.rank + 1]].tolist()


def _aligned(counts: list[int], alignment: int) -> list[int]:
    return [-(-count // alignment) * alignment for count in counts]


def _parts(x: Rows) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns tokens and their scales, stored by rows whatever their layout."""
    tokens, scales = x if isinstance(x, tuple) else (x, None)
    return tokens, None if scales is None else scales.contiguous()


def _sms(config: Config) -> int:
    return min(config.num_sms, SMS_MAX)
