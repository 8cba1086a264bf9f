"""ElasticBuffer of the deep_ep package between hosts."""

from __future__ import annotations

from typing import Any

import pytest
from deep_ep_batch import needs_torch, torch

import tokenyard

if torch is not None:
    import deep_ep
    from deep_ep.utils.math import per_token_cast_back
    from deep_ep_internode import ARENA_BYTES, Rank, Sizes, assert_ordered_by_source

pytestmark = needs_torch

ALIGNMENT = 8
SPARE = 8
"""Tokens per rank that the buffer has room for beyond those of a call."""


class Elastic:
    def __init__(self, world: tokenyard.World) -> None:
        self.rank = Rank(world, Sizes())
        self.buffer = deep_ep.ElasticBuffer(
            world,
            num_max_tokens_per_rank=Sizes.tokens + SPARE,
            hidden=Sizes.hidden,
            explicitly_destroy=True,
        )
        self.x, self.weights = self.rank.rows["own number"], self.rank.weights["random"]

    def dispatch(self, x: Any, **options: Any) -> Any:
        return self.buffer.dispatch(
            x,
            self.rank.topk_idx,
            self.weights,
            num_experts=self.rank.experts,
            expert_alignment=ALIGNMENT,
            num_max_tokens_per_rank=Sizes.tokens,
            **options,
        )

    def check_rows(self, waits: bool) -> None:
        rank = self.rank
        rows, ids, weights, handle, _ = self.dispatch(self.x, do_cpu_sync=waits)
        here = rank.rows_here
        assert len(rows) == (here if waits else Sizes.tokens * rank.world.size)
        ends = handle.psum_num_recv_tokens_per_scaleup_rank
        assert_ordered_by_source(rows[:here], ends)
        assert (ids[here:] == -1).all()
        assert handle.dst_buffer_slot_idx is None
        per_expert = torch.bincount(ids[ids >= 0], minlength=Sizes.experts_per_rank)
        assert per_expert.tolist() == rank.rows_per_expert_here
        again, _, fresh, *_ = self.buffer.dispatch(
            2 * self.x, topk_weights=3 * self.weights, handle=handle
        )
        assert torch.equal(again[:here], 2 * rows[:here])
        assert torch.equal(fresh[:here], 3 * weights[:here])
        bias = torch.ones_like(self.x)
        home, home_weights, _ = self.buffer.combine(rows, handle, weights, bias=bias)
        assert torch.equal(home, self.x * rank.in_rank.sum(1, keepdim=True) + 1)
        assert torch.equal(home_weights, self.weights)

    def check_rows_by_expert(self, waits: bool, rounds: bool) -> None:
        self.buffer.allow_multiple_reduction = rounds
        rows, _, weights, handle, _ = self.dispatch(
            self.rank.rows["own number, FP8"], do_cpu_sync=waits, do_expand=True
        )
        values = per_token_cast_back(*rows)
        begin = 0
        counts = self.rank.rows_per_expert_here
        for count, end in zip(counts, handle.psum_num_recv_tokens_per_expert.tolist(), strict=True):
            assert end == begin + count
            assert torch.equal(values[begin:end].amin(1), values[begin:end].amax(1))
            begin = -(-end // ALIGNMENT) * ALIGNMENT
        home, home_weights, _ = self.buffer.combine(torch.nan_to_num(values), handle, weights)
        assert torch.equal(home, self.x * Sizes.topk)
        assert torch.equal(home_weights, self.weights)


def layer(world: tokenyard.World) -> tuple[Any, ...]:
    elastic = Elastic(world)
    elastic.check_rows(waits=True)
    elastic.check_rows(waits=False)
    elastic.check_rows_by_expert(waits=True, rounds=True)
    elastic.check_rows_by_expert(waits=False, rounds=False)
    buffer = elastic.buffer
    buffer.barrier()
    sizes = buffer.get_physical_domain_size(), buffer.get_logical_domain_size()
    world.barrier("all calls are over")
    buffer.destroy()
    return sizes


@pytest.mark.parametrize("ranks_per_host", [1, 2])
def test_all_calls_over_two_hosts(ranks_per_host: int) -> None:
    ranks = 2 * ranks_per_host
    seen = tokenyard.launch(layer, ranks=ranks, hosts=2, arena_bytes=ARENA_BYTES, timeout=300)
    assert seen == [((2, ranks_per_host), (1, ranks))] * ranks
