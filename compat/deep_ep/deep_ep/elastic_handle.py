"""The handle of `ElasticBuffer.dispatch`, for combine and for later dispatches on the same route.

Its tensors are those that callers of DeepEP read. They are computed on first access from the
dispatch's results on the device, on the stream that is current then. So, like the rows, they may
only be read after the dispatch's event.
"""

from __future__ import annotations

from functools import cached_property

import torch

import tokenyard
from tokenyard.errors import invalid

from .by_expert import weights_of_rows
from .expert_ranks import ranks_of


class EPHandle:
    """The handle of one dispatch; a dispatch with a handle returns the same one.

    Attributes:
        do_expand: whether rows are grouped by expert.
        num_experts, expert_alignment, num_max_tokens_per_rank, num_sms: arguments of the dispatch.
        topk_idx: [tokens, topk] as dispatched; a copy, with `do_handle_copy`.
        num_recv_tokens, num_expanded_tokens: numbers of received rows, and of rows by expert; or of
            places, if the host did not wait for the counts.
        num_recv_tokens_per_expert_list: [local experts] numbers of rows, rounded up to the
            alignment; empty if the host did not wait.
        token_metadata_at_forward, channel_linked_list: None; there is no second hop.
    """

    token_metadata_at_forward = None
    channel_linked_list = None

    def __init__(
        self,
        exchange: tokenyard.ExpertParallel,
        received: tokenyard.Received[torch.Tensor],
        rows: tokenyard.ExpertRows[torch.Tensor] | None,
        *,
        topk_idx: torch.Tensor,
        expert_alignment: int,
        num_max_tokens_per_rank: int,
        num_sms: int,
    ) -> None:
        self.exchange, self.route, self.rows = exchange, received.route, rows
        self.do_expand = rows is not None
        self.num_experts = exchange.experts
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.expert_alignment = expert_alignment
        self.num_sms = num_sms
        self.topk_idx = topk_idx
        self.num_recv_tokens = received.route.rows_received
        self.num_expanded_tokens = 0 if rows is None else rows.rows
        self.num_recv_tokens_per_expert_list = [
            -(-count // expert_alignment) * expert_alignment for count in received.tokens_per_expert
        ]
        self.received_ids = received.topk_idx
        self._source_token = received.source_token
        self._rows_from = received.rows_from_on_device
        self._rows_of_expert = received.tokens_per_expert_on_device

    def check_same(self, **sizes: int | None) -> None:
        """Raises InvalidArgument if a dispatch with this handle has other arguments than it."""
        for name, asked in sizes.items():
            own = getattr(self, name)
            if asked is not None and asked != own:
                raise invalid(name, f"{own}, as of the handle", str(asked))

    def check_weights(self, weights: torch.Tensor, *shape: int) -> None:
        """Raises InvalidArgument for weights of a wrong shape, which could fault on a GPU."""
        if weights.dtype != torch.float32 or weights.shape != shape:
            seen = f"{list(weights.shape)} of {weights.dtype}"
            raise invalid("topk_weights", f"{list(shape)} of torch.float32", seen)

    def received_topk_idx(self) -> torch.Tensor:
        """Returns a copy of the received ids, [rows, topk]: experts of this rank, or -1."""
        return self.received_ids.to(self.topk_idx.dtype, copy=True)

    @cached_property
    def psum_num_recv_tokens_per_scaleup_rank(self) -> torch.Tensor:
        """[ranks] int32: number of rows received from ranks 0 to r."""
        return self._rows_from.cumsum(0, dtype=torch.int32)

    @cached_property
    def psum_num_recv_tokens_per_expert(self) -> torch.Tensor:
        """[local experts] int32: end of each expert's rows, with the padding of earlier experts.

        The expert's own padding is included unless rows are grouped by expert.
        """
        if self.rows is not None:
            return self.rows.offsets[:-1] + self._rows_of_expert
        padded = -(-self._rows_of_expert // self.expert_alignment) * self.expert_alignment
        return padded.cumsum(0, dtype=torch.int32)

    @cached_property
    def num_unaligned_recv_tokens_per_expert(self) -> torch.Tensor | None:
        """[local experts] int32: number of rows without padding; None unless grouped by expert."""
        return self._rows_of_expert if self.do_expand else None

    @cached_property
    def recv_src_metadata(self) -> torch.Tensor:
        """[rows, 2 + topk] int32: global token number, row, each choice's row by expert or -1."""
        row = torch.arange(self.num_recv_tokens, dtype=torch.int32, device=self._rows_from.device)
        ends = self.psum_num_recv_tokens_per_scaleup_rank
        source = torch.bucketize(row, ends, out_int32=True, right=True)
        number = source * self.num_max_tokens_per_rank + self._source_token
        topk = self.topk_idx.size(1)
        slots = row.new_full((len(row), topk), -1) if self.rows is None else self.rows.row_of_choice
        return torch.cat([number[:, None], row[:, None], slots], 1)

    @cached_property
    def dst_buffer_slot_idx(self) -> torch.Tensor | None:
        """[tokens, topk] int32: the token's row on the rank of each choice, or -1.

        None between hosts, where a rank does not know the rows of its tokens.
        """
        if self.exchange.world.topology.hosts > 1:
            return None
        rank = self._rank_of_choice
        return self.route.row_on.gather(1, rank.clamp(min=0)).where(rank >= 0, -1)

    @cached_property
    def rank_order(self) -> torch.Tensor:
        """[tokens, ranks] int32: ranks ordered by the token's last choice on them, as in DeepEP."""
        ranks = self.exchange.world.size
        tokens, topk = self.topk_idx.shape
        # Choices of -1 count for an additional rank.
        rank = self._rank_of_choice.where(self._rank_of_choice >= 0, ranks)
        turn = torch.arange(topk, device=rank.device).expand(tokens, topk)
        last = torch.full((tokens, ranks + 1), -1, dtype=torch.int64, device=rank.device)
        last.scatter_reduce_(1, rank, turn, "amax")
        return last[:, :ranks].argsort(dim=1, stable=True).to(torch.int32)

    @property
    def _rank_of_choice(self) -> torch.Tensor:
        """[tokens, topk] int64: the rank of each choice, -1 for none."""
        return ranks_of(self.topk_idx, self.num_experts, self.exchange.world.size)

    def weights_of_rows(self, weights: torch.Tensor) -> torch.Tensor:
        """Returns weights [rows, topk] from [rows by expert], 0 for choices on other ranks."""
        assert self.rows is not None
        self.check_weights(weights, self.num_expanded_tokens)
        return weights_of_rows(self.rows, weights)
