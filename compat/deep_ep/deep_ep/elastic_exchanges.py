"""The exchanges of an ElasticBuffer, and its dispatches as calls of Tokenyard."""

from __future__ import annotations

from typing import Any

import torch

import tokenyard
from tokenyard.errors import invalid

from .by_expert import weights_by_expert
from .elastic_handle import EPHandle
from .throughput import SMS_MAX, Rows


class ElasticExchanges:
    """One exchange per shape of call; calls with fewer tokens than `tokens_max` share one."""

    def __init__(self, world: tokenyard.World, tokens_max: int) -> None:
        self._world = world
        self._tokens_max = tokens_max
        self._exchanges: dict[tuple[int, ...], tokenyard.ExpertParallel] = {}

    def close(self) -> None:
        for exchange in self._exchanges.values():
            exchange.close()
        self._exchanges.clear()

    def first(
        self,
        x: Rows,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor | None,
        *,
        num_experts: int,
        tokens_max: int,
        alignment: int,
        sms: int,
        copies_ids: bool,
        waits: bool,
        expands: bool,
        clears_padding: bool,
        by_columns: bool,
    ) -> tuple[EPHandle, tokenyard.Received[torch.Tensor]]:
        """Dispatches on a new route."""
        tokens, scales = x if isinstance(x, tuple) else (x, None)
        topk = topk_idx.size(1)
        if tokens_max <= 0:
            raise invalid("num_max_tokens_per_rank", "more than 0", str(tokens_max))
        if len(tokens) > tokens_max:
            raise invalid(
                "x", f"at most num_max_tokens_per_rank = {tokens_max} tokens", str(len(tokens))
            )
        most = max(tokens_max, self._tokens_max)
        exchange = self._exchange(tokens.size(1), num_experts, topk, most)
        places = 0 if waits else tokens_max * self._world.size
        received = exchange.dispatch(
            tokens,
            topk_idx,
            topk_weights,
            scales=None if scales is None else scales.contiguous(),
            scales_by_columns=by_columns and not expands and scales is not None,
            received_tokens_max=places,
            sms=min(sms, SMS_MAX),
        )
        rows = None
        if expands:
            local = exchange.local_experts
            grouped = places * min(topk, local) + (alignment - 1) * local
            rows = exchange.group_by_expert(
                received,
                alignment=alignment,
                rows_max=0 if waits else -(-grouped // alignment) * alignment,
                clear_padding=clears_padding,
                scales_by_columns=by_columns,
                sms=min(sms, SMS_MAX),
            )
        handle = EPHandle(
            exchange,
            received,
            rows,
            topk_idx=topk_idx.clone() if copies_ids else topk_idx,
            expert_alignment=alignment,
            num_max_tokens_per_rank=tokens_max,
            num_sms=sms,
        )
        return handle, received

    def again(
        self,
        x: Rows,
        topk_weights: torch.Tensor | None,
        handle: EPHandle,
        *,
        sms: int,
        clears_padding: bool,
        by_columns: bool,
    ) -> tuple[Rows, torch.Tensor | None]:
        """Dispatches other rows of the same tokens on a handle's route.

        New weights, if given, travel beside the rows, as words after the scales.
        """
        tokens, scales = x if isinstance(x, tuple) else (x, None)
        beside = [] if scales is None else [scales.contiguous().view(torch.int32)]
        if topk_weights is not None:
            handle.check_weights(topk_weights, *handle.topk_idx.shape)
            beside.append(topk_weights.contiguous().view(torch.int32))
        received = handle.exchange.dispatch(
            tokens,
            route=handle.route,
            scales=torch.cat(beside, 1) if beside else None,
            scales_by_columns=by_columns and not handle.do_expand and bool(beside),
            sms=min(sms, SMS_MAX),
        )
        weights = None
        if topk_weights is not None:
            assert received.scales is not None
            words = received.scales[:, -topk_weights.size(1) :].contiguous()
            weights = words.view(torch.float32).where(handle.received_ids >= 0, 0)
        rows: Any = received
        if handle.rows is not None:
            rows = handle.exchange.group_by_expert(
                received,
                alignment=handle.expert_alignment,
                rows_max=handle.num_expanded_tokens,
                clear_padding=clears_padding,
                scales_by_columns=by_columns,
                sms=min(sms, SMS_MAX),
            )
            weights = None if weights is None else weights_by_expert(handle.rows, weights)
        if scales is None:
            return rows.x, weights
        of_rows = rows.scales[:, : scales.size(1)]
        if not by_columns:
            of_rows = of_rows.contiguous()
        return (rows.x, of_rows.view(scales.dtype)), weights

    def _exchange(
        self, hidden: int, experts: int, topk: int, tokens_max: int
    ) -> tokenyard.ExpertParallel:
        """Returns the exchange of a shape; all ranks make it together at its first call."""
        shape = (hidden, experts, topk, tokens_max)
        if shape not in self._exchanges:
            self._exchanges[shape] = tokenyard.ExpertParallel(
                self._world,
                experts=experts,
                hidden=hidden,
                topk=topk,
                tokens_max=tokens_max,
                sms_max=SMS_MAX,
            )
        return self._exchanges[shape]
