"""`HybridEPBuffer`: NVIDIA's API of DeepEP's branch hybrid-ep, on one host, over Tokenyard."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
import torch.distributed as dist

import tokenyard
from tokenyard.compat.reach import require_reach
from tokenyard.errors import InvalidArgument, invalid

from .by_expert import weights_by_expert, weights_of_rows
from .handles import check_handle
from .hybrid_handle import HybridHandle
from .hybrid_routes import CHOICES_MAX, choices_of, columns_of, drop_beyond, table_of
from .hybrid_sizes import (
    CHOICES_VARIABLE,
    IMBALANCE_VARIABLE,
    arena_bytes,
    choices_from_environment,
    options_of,
)
from .refusal import unsupported
from .rendezvous import join_rendezvous, timeout_of
from .room import advised
from .throughput import SMS_MAX

DOMAIN_VARIABLE = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"

Permuted = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor, HybridHandle]
"""Rows by expert, their probabilities and scales, rows per expert, the handle."""
Dispatched = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, HybridHandle]
"""Rows, their probabilities per expert, their scales, the handle."""


class HybridEPBuffer:
    """One rank's memory and calls. Collective: all ranks of a group make it and its calls together.

    Results are in memory of torch and belong to the caller. A handle keeps some memory of the
    buffer: 8 bytes per choice and 4 per row.

    Args:
        group: a torch.distributed process group of any backend; or a `tokenyard.World`, which
            the caller has to close, and whose arena then bounds the calls.
        hidden_dim: elements per token.
        max_num_of_tokens_per_rank: largest number of tokens per rank and call. If all ranks pass
            more, the buffer grows, which takes as long as making it.
        num_local_experts: experts per rank.
        num_sms_dispatch_api, num_sms_combine_api: multiprocessors of these calls; None: chosen.
        use_fp8, num_sms_preprocessing_api, num_blocks_permute, num_blocks_unpermute,
            load_cached_kernels, use_shared_buffer, enable_custom_allgather, use_mnnvl: no effect.
        num_of_hybrid_ep_ranks_per_nvlink_domain: None or the number of ranks.
        choices_max: largest number of experts of a token; None for the environment's
            TOKENYARD_HYBRID_EP_CHOICES. If there is none either, ranks agree on one at the first
            call, and again when a token has more; a call with `non_blocking` cannot, and reserves
            a choice for each expert, up to 256.
        device: "cuda" or "host"; None for "cuda" if there are GPUs.
        timeout: as for `Buffer`.

    Raises:
        Unsupported: a rank is not within reach of loads and stores.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | tokenyard.World,
        hidden_dim: int,
        max_num_of_tokens_per_rank: int,
        num_local_experts: int,
        use_fp8: bool = False,
        num_sms_dispatch_api: int | None = None,
        num_sms_combine_api: int | None = None,
        num_sms_preprocessing_api: int | None = None,
        num_blocks_permute: int | None = None,
        num_blocks_unpermute: int | None = None,
        load_cached_kernels: bool = False,
        use_shared_buffer: bool = True,
        enable_custom_allgather: bool = False,
        num_of_hybrid_ep_ranks_per_nvlink_domain: int | None = None,
        use_mnnvl: bool | None = None,
        choices_max: int | None = None,
        device: str | None = None,
        timeout: float | None = None,
    ) -> None:
        for name, size in (
            ("hidden_dim", hidden_dim),
            ("max_num_of_tokens_per_rank", max_num_of_tokens_per_rank),
            ("num_local_experts", num_local_experts),
        ):
            if size <= 0:
                raise invalid(name, "1 or more", str(size))
        if choices_max is not None and not 1 <= choices_max <= CHOICES_MAX:
            raise invalid("choices_max", f"1 to {CHOICES_MAX}, or None", str(choices_max))
        self.group = group
        self.num_local_experts = num_local_experts
        self._hidden, self._tokens_max = hidden_dim, max_num_of_tokens_per_rank
        self._dispatch_sms = min(num_sms_dispatch_api or 0, SMS_MAX)
        self._combine_sms = min(num_sms_combine_api or 0, SMS_MAX)
        self._choices_max = choices_max or choices_from_environment()
        self._choices = self._choices_max or 0
        """Choices per token that ranks have agreed on; 0: not yet."""
        self._device, self._timeout = device, timeout
        self._worlds: list[tokenyard.World] = []
        """The last is current; earlier ones, of a buffer that has grown, serve their handles."""
        self._room = 0
        self._advice = (
            f"{IMBALANCE_VARIABLE} in the environment, 4 if there is none, is the multiple of a"
            " balanced number of rows for which a rank has room (of a World that was given,"
            " arena_bytes is); handles take a part of it, too"
        )
        self._exchanges: dict[tuple[int, ...], tokenyard.ExpertParallel] = {}
        if isinstance(group, tokenyard.World):
            if timeout is not None:
                raise invalid("timeout", "None beside a World, which has its own", repr(timeout))
            self._worlds.append(group)
            require_reach(group, "HybridEPBuffer", "DeepEP")
        else:
            experts = num_local_experts * group.size()
            options = options_of(experts, hidden_dim, self._choices or 1, self._tokens_max)
            self._reserve(options, None)
        self.rank, self.group_size = self._world.rank, self._world.size
        self.local_rank, self.node_rank, self.num_of_nodes = self.rank, 0, 1
        self.num_of_hybrid_ep_ranks_per_nvlink_domain = self.group_size
        for name, domain in (
            ("num_of_hybrid_ep_ranks_per_nvlink_domain", num_of_hybrid_ep_ranks_per_nvlink_domain),
            (DOMAIN_VARIABLE, os.environ.get(DOMAIN_VARIABLE)),
        ):
            if domain is not None and str(domain) != str(self.group_size):
                raise unsupported(
                    f"{name}={domain}",
                    f"all {self.group_size} ranks of a group are one NVLink domain here; unset it",
                )

    @property
    def _world(self) -> tokenyard.World:
        return self._worlds[-1]

    def empty_jit_cache(self) -> None:
        """Does nothing: kernels are compiled with the library."""

    def update_template_config(self, *arguments: Any, **options: Any) -> Any:
        """Raises Unsupported."""
        raise unsupported(
            "update_template_config", "kernels have no templates to configure; leave it out"
        )

    def dispatch(
        self,
        hidden: torch.Tensor,
        scaling_factor: torch.Tensor | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        num_of_experts: int | None = None,
        probs: torch.Tensor | None = None,
        routing_map: torch.Tensor | None = None,
        num_dispatched_tokens_tensor: torch.Tensor | None = None,
        num_dispatched_tokens: int | None = None,
        handle: HybridHandle | None = None,
    ) -> Dispatched:
        """Sends each token to the ranks that hold its experts. Collective; waits for the counts.

        Args:
            hidden: [tokens, hidden] bfloat16; or uint8 or float8_e4m3fn, with scales.
            scaling_factor: [tokens, hidden / 128] float32; ignored beside bfloat16.
            routing_map, probs: [tokens, experts] bool and float32.
            topk_idx, topk_weights, num_of_experts: [tokens, topk] ids and float32, instead of a
                map.
            handle: that of an earlier dispatch, whose route is used again, instead of either.

        Returns:
            Rows ordered by source; [rows, experts] float32 probabilities of this rank's experts,
            others 0, or None; scales or None; the handle.
        """
        ids, weights = self._choices_given(
            hidden, routing_map, probs, topk_idx, topk_weights, num_of_experts, handle
        )
        x, scales = _rows_of(hidden, scaling_factor)
        if handle is None:
            handle, received = self._first(x, scales, ids, weights, None, routing_map)
            weights_there = None if weights is None else received.topk_weights
        else:
            received = self._again(x, scales, handle, weights)
            weights_there = _weights_beside(received, weights)
        table = None
        if weights_there is not None:
            first = self.rank * self.num_local_experts
            weights_there = weights_there.masked_fill(handle.received_ids < 0, 0)
            table = table_of(weights_there, handle.received_ids, handle.exchange.experts, first)
        return (
            received.x.clone().view(hidden.dtype),
            table,
            _scales_there(received.scales, scales),
            handle,
        )

    def combine(
        self,
        hidden: torch.Tensor,
        probs: torch.Tensor | None = None,
        handle: HybridHandle | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns to each token the sum of its results over its ranks. Collective.

        Args:
            hidden: [rows of the dispatch, hidden] bfloat16.
            probs: [rows, experts] float32 to return beside the rows.

        Returns:
            [tokens, hidden] and [tokens, experts] float32 or None.
        """
        handle = self._handle_of(handle, permuted=False)
        weights = None
        if probs is not None:
            first = self.rank * self.num_local_experts
            weights = columns_of(probs, handle.received_ids, first)
        return self._home(hidden, weights, handle)

    def dispatch_with_permute(
        self,
        *,
        hidden: torch.Tensor,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        num_of_experts_per_rank: int | None = None,
        num_of_experts: int | None = None,
        use_fp8: bool | None = None,
        routing_map: torch.Tensor | None = None,
        probs: torch.Tensor | None = None,
        scaling_factor: torch.Tensor | None = None,
        num_permuted_tokens: int | torch.Tensor | None = None,
        pad_multiple: int | None = None,
        handle: HybridHandle | None = None,
        non_blocking: bool = False,
        fuse_permute_dispatch: bool = False,
        num_dispatched_tokens: int | None = None,
        use_host_meta: bool | None = None,
    ) -> Permuted:
        """Sends each token to the ranks of its experts, and groups rows by expert. Collective.

        Args:
            hidden, scaling_factor, routing_map, probs, topk_idx, topk_weights, num_of_experts: as
                `dispatch`.
            num_permuted_tokens: rows of the result; None: as many as are used. With
                `non_blocking`, the same on all ranks; rows beyond are dropped, and the handle's
                last element is 1.
            pad_multiple: each expert's number of rows is rounded up to this, with zeros; 0 or
                None: not.
            handle: as `dispatch`; `pad_multiple` must be the first dispatch's.
            non_blocking: whether the host does not wait for the counts.
            fuse_permute_dispatch: no effect: rows are written once either way.

        Returns:
            [rows, hidden] grouped by expert, places after the last used one undefined; [rows]
            probabilities and scales, or None; [local experts] int64 number of rows with padding,
            on the host, or with `non_blocking` on the device; the handle.
        """
        if num_dispatched_tokens is not None:
            warnings.warn("num_dispatched_tokens is deprecated, and ignored", stacklevel=2)
        if use_host_meta is not None:
            warnings.warn("use_host_meta is deprecated; pass non_blocking", stacklevel=2)
            non_blocking = not use_host_meta
        if num_of_experts_per_rank not in (None, self.num_local_experts):
            raise invalid(
                "num_of_experts_per_rank",
                f"num_local_experts of the buffer, {self.num_local_experts}",
                str(num_of_experts_per_rank),
            )
        alignment = pad_multiple or 1
        places = None if num_permuted_tokens is None else int(num_permuted_tokens)
        if non_blocking and (places is None or places < 0 or places % alignment):
            raise invalid(
                "num_permuted_tokens",
                f"a multiple of pad_multiple = {alignment} beside non_blocking",
                str(places),
            )
        ids, weights = self._choices_given(
            hidden, routing_map, probs, topk_idx, topk_weights, num_of_experts, handle
        )
        x, scales = _rows_of(hidden, scaling_factor)
        overflow = None
        if handle is None:
            bound = places if non_blocking else None
            handle, received = self._first(x, scales, ids, weights, bound, routing_map)
            if bound is not None:
                overflow = drop_beyond(received, bound, alignment)
            handle.use(alignment, overflow)
        else:
            handle = self._handle_of(handle, permuted=True)
            if alignment != handle.alignment:
                raise invalid(
                    "pad_multiple", f"{handle.alignment}, as of the handle", f"{alignment}"
                )
            received = self._again(x, scales, handle, weights)
        rows = self._grouped(handle, received, places, non_blocking)
        used = rows.rows if places is None else places
        probs_there = None
        if weights is not None:
            probs_there = rows.weights
            if handle.rows is not None:
                beside = _weights_beside(received, weights)
                assert beside is not None
                probs_there = weights_by_expert(handle.rows, beside)
            probs_there = _resized(probs_there.clone(), used)
        got = _resized(rows.x.clone().view(hidden.dtype), used)
        scales_there = _scales_there(rows.scales, scales)
        if scales_there is not None:
            scales_there = _resized(scales_there, used)
        per_expert = rows.offsets.diff().to(torch.int64)
        if not non_blocking and rows.first_rows:
            per_expert = torch.tensor(rows.first_rows, device="cpu").diff()
        rows.forget_rows()
        if handle.rows is None:
            handle.rows = rows
        return got, probs_there, scales_there, per_expert, handle

    def combine_with_unpermute(
        self,
        *,
        hidden: torch.Tensor,
        probs: torch.Tensor | None = None,
        handle: HybridHandle | None = None,
        pad_multiple: int | None = None,
        fuse_unpermute_combine: bool = False,
        num_dispatched_tokens: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Sums rows by expert to one per received row, and these at home. Collective.

        The first sum is in float32, in the order of the experts, and rounded; so is the second, in
        the order of the ranks.

        Args:
            hidden: [rows, hidden] bfloat16 as grouped by the dispatch; padding is not read.
            probs: [rows] float32 to return beside them.

        Returns:
            [tokens, hidden] and [tokens, experts] float32 or None.
        """
        if num_dispatched_tokens is not None:
            warnings.warn("num_dispatched_tokens is deprecated, and ignored", stacklevel=2)
        handle = self._handle_of(handle, permuted=True)
        rows = handle.rows
        assert rows is not None
        weights = None
        if probs is not None:
            weights = weights_of_rows(rows, _resized(probs, rows.rows))
        return self._home(_resized(hidden, rows.rows), weights, handle)

    def _choices_given(
        self,
        hidden: torch.Tensor,
        routing_map: torch.Tensor | None,
        probs: torch.Tensor | None,
        topk_idx: torch.Tensor | None,
        topk_weights: torch.Tensor | None,
        num_of_experts: int | None,
        handle: HybridHandle | None,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Returns ids and weights per choice. Ids are None where a map's still have to be agreed
        on; weights then are the map's table."""
        experts = self.num_local_experts * self.group_size
        tokens = hidden.size(0)
        for name, table, dtype in (
            ("routing_map", routing_map, torch.bool),
            ("probs", probs, torch.float32),
        ):
            if table is not None and (table.dtype != dtype or table.shape != (tokens, experts)):
                seen = f"{list(table.shape)} of {table.dtype}"
                raise invalid(name, f"[{tokens}, {experts}] of {dtype}", seen)
        if handle is not None:
            check_handle(handle, HybridHandle, "dispatch")
            if tokens != handle.route.tokens:
                raise invalid(
                    "hidden", f"{handle.route.tokens} tokens, as of the handle", f"{tokens}"
                )
            return handle.ids, None if probs is None else columns_of(probs, handle.ids)
        if routing_map is not None:
            return None, probs
        if topk_idx is None:
            raise invalid("routing_map", "given, or topk_idx, or a handle", "None")
        if num_of_experts != experts:
            raise invalid("num_of_experts", f"{experts} beside topk_idx", str(num_of_experts))
        return topk_idx.to(torch.int64), topk_weights

    def _first(
        self,
        x: torch.Tensor,
        scales: torch.Tensor | None,
        ids: torch.Tensor | None,
        weights: torch.Tensor | None,
        bound: int | None,
        routing_map: torch.Tensor | None,
    ) -> tuple[HybridHandle, tokenyard.Received[torch.Tensor]]:
        """Dispatches on a new route.

        Args:
            bound: the largest number of rows by expert, of a dispatch that never waits; else None.
        """
        self._tokens_max = max(self._tokens_max, x.size(0))
        if ids is not None:
            return self._dispatch(x, scales, ids, weights, bound)
        assert routing_map is not None
        experts = routing_map.size(1)
        if bound is not None or self._choices_max is not None:
            choices = min(self._choices_max or CHOICES_MAX, experts)
            ids = choices_of(routing_map, choices)
            table = None if weights is None else columns_of(weights, ids)
            try:
                return self._dispatch(x, scales, ids, table, bound)
            except InvalidArgument as error:
                if error.argument == "topk_idx":
                    error.add_note(
                        f"a token of some rank has more than {choices} experts, which choices_max"
                        f" or {CHOICES_VARIABLE} bounds"
                    )
                raise
        most = int(routing_map.sum(1).max()) if len(routing_map) else 0
        if self._choices == 0:
            self._choices = max(1, self._agree(most))
        while True:
            ids = choices_of(routing_map, self._choices)
            table = None if weights is None else columns_of(weights, ids)
            try:
                return self._dispatch(x, scales, ids, table, bound)
            except InvalidArgument as error:
                # All ranks raise alike for a token of too many experts, so all agree again here.
                if error.argument != "topk_idx":
                    raise
                agreed = self._agree(most)
                if agreed <= self._choices:
                    raise
                self._choices = agreed

    def _agree(self, choices: int) -> int:
        """Returns the largest number of all ranks. Collective."""
        told = self._world.all_gather(choices.to_bytes(4, "little"), "experts of a token")
        return max(int.from_bytes(each, "little") for each in told)

    def _dispatch(
        self,
        x: torch.Tensor,
        scales: torch.Tensor | None,
        ids: torch.Tensor,
        weights: torch.Tensor | None,
        bound: int | None,
    ) -> tuple[HybridHandle, tokenyard.Received[torch.Tensor]]:
        exchange = self._exchange(x.size(1), ids.size(1), bound)
        with advised(self._advice):
            received = exchange.dispatch(
                x,
                ids,
                weights,
                scales=scales,
                received_tokens_max=0 if bound is None else self.group_size * exchange.tokens_max,
                sms=self._dispatch_sms,
            )
        return HybridHandle(exchange, received, ids), received

    def _again(
        self,
        x: torch.Tensor,
        scales: torch.Tensor | None,
        handle: HybridHandle,
        weights: torch.Tensor | None,
    ) -> tokenyard.Received[torch.Tensor]:
        """Dispatches other rows on a handle's route; weights travel as words after the scales."""
        words = [each.view(torch.int32) for each in (scales, weights) if each is not None]
        return handle.exchange.dispatch(
            x,
            route=handle.route,
            scales=torch.cat(words, 1) if words else None,
            sms=self._dispatch_sms,
        )

    def _grouped(
        self,
        handle: HybridHandle,
        received: tokenyard.Received[torch.Tensor],
        places: int | None,
        non_blocking: bool,
    ) -> tokenyard.ExpertRows[torch.Tensor]:
        most = 0
        if handle.rows is not None:
            most = handle.rows.rows
        elif non_blocking:
            assert places is not None
            most = max(places, handle.alignment)
        with advised(self._advice):
            rows = handle.exchange.group_by_expert(
                received, alignment=handle.alignment, rows_max=most, sms=self._dispatch_sms
            )
        if not non_blocking and handle.rows is None and places is not None and places < rows.rows:
            raise invalid(
                "num_permuted_tokens", f"the {rows.rows} rows, or non_blocking", str(places)
            )
        return rows

    def _home(
        self, hidden: torch.Tensor, weights: torch.Tensor | None, handle: HybridHandle
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        home: Any = handle.exchange.combine(
            hidden.contiguous(),
            handle.route,
            weights,
            by_expert=handle.rows,
            sms=self._combine_sms,
        )
        if weights is None:
            return home, None
        return home.x, table_of(home.topk_weights, handle.ids, handle.exchange.experts)

    def _handle_of(self, handle: Any, *, permuted: bool) -> HybridHandle:
        call = "dispatch_with_permute" if permuted else "dispatch"
        check_handle(handle, HybridHandle, call)
        if (handle.rows is not None) != permuted:
            raise invalid("handle", f"that of {call}", "that of the other dispatch")
        return handle

    def _exchange(self, hidden: int, choices: int, places: int | None) -> tokenyard.ExpertParallel:
        """Returns the exchange of a shape; all ranks make it together at its first call."""
        experts = self.num_local_experts * self.group_size
        options = options_of(experts, hidden, choices, self._tokens_max)
        if not isinstance(self.group, tokenyard.World):
            self._reserve(options, places)
        shape = (len(self._worlds), *options.values())
        if shape not in self._exchanges:
            self._exchanges[shape] = tokenyard.ExpertParallel(self._world, **options)
        return self._exchanges[shape]

    def _reserve(self, options: dict[str, int], places: int | None) -> None:
        """Makes a new world if the current one has too little memory for calls of these options.

        Collective, since all ranks have agreed on the options.
        """
        assert not isinstance(self.group, tokenyard.World)
        needed = arena_bytes(self.group.size(), options, places)
        if needed <= self._room:
            return
        world = join_rendezvous(self.group, self._device, needed, timeout_of(self._timeout))
        require_reach(world, "HybridEPBuffer", "DeepEP")
        self._worlds.append(world)
        self._room = needed


def _rows_of(
    hidden: torch.Tensor, scaling_factor: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns rows and scales as an exchange takes them."""
    if hidden.element_size() > 1:
        return hidden.contiguous(), None
    if scaling_factor is None:
        raise invalid("scaling_factor", "a tensor beside FP8 rows", "None")
    return hidden.contiguous().view(torch.float8_e4m3fn), scaling_factor.contiguous()


def _scales_there(words: torch.Tensor | None, sent: torch.Tensor | None) -> torch.Tensor | None:
    """Returns a copy of the scales among the words that came beside rows."""
    if words is None or sent is None:
        return None
    return words[:, : sent.size(1)].contiguous().view(sent.dtype).clone()


def _weights_beside(
    received: tokenyard.Received[torch.Tensor], sent: torch.Tensor | None
) -> torch.Tensor | None:
    """Returns the weights among the words that came beside rows."""
    if sent is None:
        return None
    assert received.scales is not None
    return received.scales[:, -sent.size(1) :].contiguous().view(torch.float32)


def _resized(rows: torch.Tensor, number: int) -> torch.Tensor:
    """Returns `number` rows: the first ones, or all and zeros."""
    if len(rows) >= number:
        return rows[:number]
    return torch.cat([rows, rows.new_zeros(number - len(rows), *rows.shape[1:])])
