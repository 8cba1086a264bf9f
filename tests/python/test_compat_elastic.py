"""ElasticBuffer of the deep_ep package: plain, by expert, with a reused handle, and combine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from deep_ep_batch import (
    EXPERTS,
    HIDDEN,
    LOCAL,
    RANKS,
    TOPK,
    equal,
    expected_counts,
    expected_rows,
    given,
    in_ranks,
    inputs,
    needs_torch,
    torch,
)

import tokenyard

if torch is not None:
    import deep_ep
    from deep_ep.utils.math import per_token_cast_back, per_token_cast_to_fp8

pytestmark = needs_torch

TOKENS_MAX = 32
ALIGNMENT = 8


def buffer_of(world: tokenyard.World, **options: Any) -> Any:
    sizes = dict(num_max_tokens_per_rank=TOKENS_MAX, hidden=HIDDEN)
    return deep_ep.ElasticBuffer(world, **sizes, **options)


def expected_numbers(rank: int) -> Any:
    """Returns the global numbers of the tokens that a rank receives."""
    return torch.cat(
        [
            in_ranks(inputs(source)[1])[:, rank].nonzero()[:, 0] + source * TOKENS_MAX
            for source in range(RANKS)
        ]
    )


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("events", [False, True])
def test_rows_as_they_come(run: Callable[..., None], waits: bool, events: bool) -> None:
    def layer(world: tokenyard.World) -> None:
        buffer = buffer_of(world, explicitly_destroy=True)
        assert buffer.get_logical_domain_size() == (1, RANKS)
        x, topk_idx, topk_weights = given(world)
        total = torch.zeros(LOCAL, dtype=torch.int32)
        how = dict(async_with_compute_stream=events)
        rows, ids, weights, handle, event = buffer.dispatch(
            x,
            topk_idx,
            topk_weights,
            cumulative_local_expert_recv_stats=total,
            num_experts=EXPERTS,
            expert_alignment=ALIGNMENT,
            do_cpu_sync=waits,
            previous_event=buffer.capture(),
            **how,
        )
        event.current_stream_wait()
        expected, counts = expected_rows(world.rank), expected_counts(world.rank)
        received = len(expected[0])
        assert len(rows) == (received if waits else RANKS * TOKENS_MAX)
        for seen, wanted in zip((rows, ids, weights), expected, strict=True):
            assert equal(seen[:received], wanted)
        assert (ids[received:] == -1).all()
        padded = [-(-count // ALIGNMENT) * ALIGNMENT for count in counts]
        assert handle.num_recv_tokens_per_expert_list == (padded if waits else [])
        assert handle.psum_num_recv_tokens_per_expert.diff(prepend=total[:1] * 0).tolist() == padded
        assert handle.psum_num_recv_tokens_per_scaleup_rank[-1] == received
        assert total.tolist() == counts
        assert equal(handle.recv_src_metadata[:received, 0], expected_numbers(world.rank).int())
        assert handle.topk_idx.data_ptr() != topk_idx.data_ptr() or not len(x)

        # The sender of a token knows its row.
        slots = handle.dst_buffer_slot_idx
        assert equal(slots < 0, topk_idx < 0)
        mine = in_ranks(topk_idx)[:, world.rank].nonzero()[:, 0]
        here = topk_idx[mine].div(LOCAL, rounding_mode="floor") == world.rank
        first = handle.psum_num_recv_tokens_per_scaleup_rank[world.rank] - len(mine)
        place = (first + torch.arange(len(mine), dtype=torch.int32))[:, None].expand_as(here)
        assert equal(slots[mine][here], place[here])

        again, same, fresh, handle_again, event = buffer.dispatch(
            2 * x, topk_weights=3 * topk_weights, handle=handle, **how
        )
        event.current_stream_wait()
        assert handle_again is handle
        assert equal(same, ids)
        assert equal(again[:received], 2 * expected[0])
        assert equal(fresh[:received], 3 * expected[2])

        home, home_weights, event = buffer.combine(rows, handle, weights, **how)
        event.current_stream_wait()
        assert equal(home, (x.float() * in_ranks(topk_idx).sum(1, keepdim=True)).bfloat16())
        assert equal(home_weights, topk_weights.where(topk_idx >= 0, 0))
        buffer.barrier(with_cpu_sync=True)
        buffer.destroy()

    run(layer)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("fp8", [False, True])
def test_rows_by_expert(run: Callable[..., None], waits: bool, fp8: bool) -> None:
    def layer(world: tokenyard.World) -> None:
        buffer = buffer_of(world)
        x, topk_idx, topk_weights = given(world)
        sent = per_token_cast_to_fp8(x) if fp8 else x
        rows, ids, weights, handle, _ = buffer.dispatch(
            sent,
            topk_idx,
            topk_weights,
            num_experts=EXPERTS,
            expert_alignment=ALIGNMENT,
            do_cpu_sync=waits,
            do_expand=True,
            use_tma_aligned_col_major_sf=True,
        )
        assert ids is None
        if fp8:
            assert rows[1].stride(0) == 1
            rows = per_token_cast_back(*rows)
        tokens, local_ids, local_weights = expected_rows(world.rank)
        if fp8:
            tokens = per_token_cast_back(*per_token_cast_to_fp8(tokens))
        begin = 0
        for expert, end in enumerate(handle.psum_num_recv_tokens_per_expert.tolist()):
            which, choice = (local_ids == expert).nonzero(as_tuple=True)
            assert end - begin == len(which)
            assert equal(rows[begin:end], tokens[which])
            assert equal(weights[begin:end], local_weights[which, choice])
            slots = handle.recv_src_metadata[which, 2 + choice]
            assert equal(slots, torch.arange(begin, end, dtype=torch.int32))
            begin = -(-end // ALIGNMENT) * ALIGNMENT
            assert (weights[end:begin] == 0).all()
        if waits:
            assert handle.num_expanded_tokens == len(rows) == begin
        again, _, fresh, _, _ = buffer.dispatch(
            sent,
            topk_weights=topk_weights,
            handle=handle,
            do_expand=True,
            do_zero_padding=True,
            use_tma_aligned_col_major_sf=True,
        )
        assert equal(fresh, weights.where(handle.rows.row_of >= 0, 0))
        again = per_token_cast_back(*again) if fp8 else again
        own = handle.rows.row_of >= 0
        assert equal(again[own], rows[own])
        assert (again[:begin][~own[:begin]] == 0).all()

    run(layer)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("again", [False, True])
def test_padding_is_cleared_where_that_is_asked(
    run: Callable[..., None], again: bool, waits: bool
) -> None:
    """Padding may keep the memory's old contents unless it is cleared; sums are the same."""
    before = 7.0

    def layer(world: tokenyard.World) -> None:
        buffer = buffer_of(world)
        x, topk_idx, topk_weights = given(world)
        new = dict(topk_idx=topk_idx, num_experts=EXPERTS, expert_alignment=ALIGNMENT)
        first = buffer.dispatch(x, **new, do_cpu_sync=waits, do_expand=True)[3]

        def rows_and_handle(cleared: bool) -> tuple[Any, Any]:
            how = dict(handle=first) if again else dict(**new, do_cpu_sync=waits)
            rows, _, _, handle, _ = buffer.dispatch(
                x, topk_weights=topk_weights, **how, do_expand=True, do_zero_padding=cleared
            )
            return rows, handle

        def left_of_before(cleared: bool) -> int:
            """Returns elements of the padding that were not written."""
            rows_and_handle(cleared)[0].fill_(before)
            rows, handle = rows_and_handle(cleared)
            own = handle.rows.row_of >= 0
            padding = ~own
            padding[handle.rows.offsets[-1] :] = False  # Unused places.
            assert padding.any()
            assert not cleared or (rows[padding] == 0).all()
            left = int((rows[padding] == before).sum())
            rows[~own] = torch.nan
            home, _, _ = buffer.combine(rows, handle)
            choices = (topk_idx >= 0).sum(1, keepdim=True)
            assert equal(home, (x.float() * choices).bfloat16())
            return left

        for cleared in (False, True, False, True):
            # Successive calls mostly get the same memory, but on a GPU they need not.
            left = sum(left_of_before(cleared) for _ in range(5))
            assert (left == 0) == cleared

    run(layer)


@pytest.mark.parametrize("rounds_on_ranks", [True, False])
@pytest.mark.parametrize("biases", [0, 1, 2])
def test_sums_are_taken_in_the_order_of_deep_ep(
    run: Callable[..., None], biases: int, rounds_on_ranks: bool
) -> None:
    """Sums on each rank in the order of choices, then ranks by their last choice, after the biases.

    The last bits of these sums depend on the order.
    """

    def results(world: tokenyard.World, source: int, topk_idx: Any) -> Any:
        generator = torch.Generator("cpu").manual_seed(50 + source)
        shape = (*topk_idx.shape, HIDDEN)
        drawn = torch.randn(shape, generator=generator, device="cpu").to(torch.bfloat16)
        return drawn * (topk_idx.cpu() >= 0)[:, :, None]

    def layer(world: tokenyard.World) -> None:
        buffer = buffer_of(world, allow_multiple_reduction=rounds_on_ranks)
        x, topk_idx, topk_weights = given(world)
        rows, _, weights, handle, _ = buffer.dispatch(
            x, topk_idx, topk_weights, num_experts=EXPERTS, do_expand=True
        )
        y = torch.zeros(len(rows) + 1, HIDDEN, dtype=torch.bfloat16)
        number = handle.recv_src_metadata[:, 0].tolist()
        everybody = [results(world, source, inputs(source)[1]) for source in range(RANKS)]
        for row, slots in zip(number, handle.recv_src_metadata[:, 2:].long(), strict=True):
            y[slots] = everybody[row // TOKENS_MAX][row % TOKENS_MAX].to(y.device)
        beside = [(5 * x + each).to(torch.bfloat16) for each in range(biases)]
        bias = None if biases == 0 else beside[0] if biases == 1 else tuple(beside)
        home, home_weights, _ = buffer.combine(y[:-1], handle, weights, bias=bias)

        mine = everybody[world.rank].to(y.device)
        owner = topk_idx.div(LOCAL, rounding_mode="floor")
        total = torch.zeros(len(x), HIDDEN)
        for each in beside:
            total += each.float()
        for choice in range(TOPK):
            there = torch.zeros(len(x), HIDDEN)
            for earlier in range(choice + 1):
                same = owner[:, earlier] == owner[:, choice]
                there += mine[:, earlier].float() * same[:, None]
            is_last = (owner[:, choice + 1 :] != owner[:, choice, None]).all(1)
            if rounds_on_ranks:
                there = there.to(torch.bfloat16).float()
            total += there * is_last[:, None]
        assert equal(home, total.to(torch.bfloat16))
        assert equal(home_weights, topk_weights.where(topk_idx >= 0, 0))

    run(layer)


@pytest.mark.parametrize("waits", [True, False])
def test_calls_of_all_sizes_share_what_peers_have_agreed_on(waits: bool) -> None:
    """vLLM passes another size with every batch, but making an exchange is collective, and is not
    possible in a CUDA graph."""

    def layer(world: tokenyard.World) -> None:
        buffer = buffer_of(world)
        x, topk_idx, topk_weights = inputs(world.rank)
        for tokens in (32, 1, 2, 4, 8, 16):
            few = [part[:tokens].contiguous() for part in (x, topk_idx, topk_weights)]
            rows, ids, _, handle, _ = buffer.dispatch(
                *few, num_experts=EXPERTS, num_max_tokens_per_rank=tokens, do_cpu_sync=waits
            )
            assert handle.num_max_tokens_per_rank == tokens
            assert waits or len(rows) == len(ids) == RANKS * tokens
            received = handle.psum_num_recv_tokens_per_scaleup_rank[-1]
            numbers = [
                in_ranks(inputs(source)[1][:tokens])[:, world.rank].nonzero()[:, 0]
                + source * tokens
                for source in range(RANKS)
            ]
            assert equal(handle.recv_src_metadata[:received, 0], torch.cat(numbers).int())
            home, _, _ = buffer.combine(rows, handle)
            sums = few[0].float() * in_ranks(few[1]).sum(1, keepdim=True)
            assert equal(home, sums.bfloat16())
        assert len(buffer._exchanges._exchanges) == 1
        more = 2 * TOKENS_MAX  # Than the buffer was made for, if its memory is enough.
        new = dict(num_experts=EXPERTS, num_max_tokens_per_rank=more)
        assert buffer.dispatch(x, topk_idx, **new)[3].num_max_tokens_per_rank == more

    tokenyard.launch(layer, ranks=RANKS, arena_bytes=128 << 20)


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_what_callers_write_to_is_theirs(run: Callable[..., None], dtype: str) -> None:
    """vLLM converts received ids to global ones in place, and trainers restore saved tensors of a
    handle."""

    def layer(world: tokenyard.World) -> None:
        buffer = buffer_of(world)
        x, topk_idx, topk_weights = given(world)
        topk_idx = topk_idx.to(getattr(torch, dtype))
        for expands in (False, True):
            rows, ids, weights, handle, _ = buffer.dispatch(
                x, topk_idx, topk_weights, num_experts=EXPERTS, do_expand=expands
            )
            if not expands:
                before = ids.clone()
                ids.fill_(-1)
            for name in (
                "topk_idx",
                "psum_num_recv_tokens_per_scaleup_rank",
                "psum_num_recv_tokens_per_expert",
                "recv_src_metadata",
                "dst_buffer_slot_idx",
                "num_unaligned_recv_tokens_per_expert",
            ):
                saved = getattr(handle, name)
                setattr(handle, name, None if saved is None else saved.clone())
            again, same, fresh, _, _ = buffer.dispatch(
                x, topk_weights=topk_weights, handle=handle, do_expand=expands
            )
            own = slice(None) if handle.rows is None else handle.rows.row_of >= 0
            assert equal(again[own], rows[own])
            assert equal(fresh[own], weights[own])
            assert expands or (equal(same, before) and same.dtype == topk_idx.dtype)
            home, _, _ = buffer.combine(again, handle)
            choices = (topk_idx >= 0) if expands else in_ranks(topk_idx)
            assert equal(home, (x.float() * choices.sum(1, keepdim=True)).bfloat16())

    run(layer)


def test_what_cannot_be_had_says_so() -> None:
    def layer(world: tokenyard.World) -> None:
        x, topk_idx, topk_weights = inputs(0)
        buffer = buffer_of(world)
        handle = buffer.dispatch(x, topk_idx, topk_weights, num_experts=EXPERTS)[3]
        with pytest.raises(tokenyard.InvalidArgument, match="topk_idx"):
            buffer.dispatch(x)
        with pytest.raises(tokenyard.InvalidArgument, match="handle"):
            buffer.dispatch(x, topk_idx, handle=handle)
        with pytest.raises(tokenyard.InvalidArgument, match="do_cpu_sync"):
            buffer.dispatch(x, handle=handle, do_cpu_sync=True)
        with pytest.raises(tokenyard.InvalidArgument, match="do_expand"):
            buffer.dispatch(x, handle=handle, do_expand=True)
        with pytest.raises(tokenyard.InvalidArgument, match="do_zero_padding"):
            buffer.dispatch(x, topk_idx, num_experts=EXPERTS, do_zero_padding=True)
        for other in ("num_experts", "num_max_tokens_per_rank", "expert_alignment"):
            buffer.dispatch(x, handle=handle, **{other: getattr(handle, other)})
            with pytest.raises(tokenyard.InvalidArgument, match=f"{other}.*as of the handle"):
                buffer.dispatch(x, handle=handle, **{other: 2 * getattr(handle, other)})
        stats = torch.zeros(EXPERTS, dtype=torch.int32)
        with pytest.raises(tokenyard.InvalidArgument, match="cumulative_local_expert_recv_stats"):
            buffer.dispatch(x, handle=handle, cumulative_local_expert_recv_stats=stats)
        with pytest.raises(tokenyard.InvalidArgument, match="num_max_tokens_per_rank = 8"):
            buffer.dispatch(x, topk_idx, num_experts=EXPERTS, num_max_tokens_per_rank=8)
        with pytest.raises(tokenyard.InvalidArgument, match="handle"):
            buffer.combine(x, (handle,))
        for wrong in (topk_weights[:3], topk_weights.bfloat16()):
            with pytest.raises(tokenyard.InvalidArgument, match=r"topk_weights.*float32, got"):
                buffer.dispatch(x, topk_weights=wrong, handle=handle)
        new = dict(num_experts=EXPERTS, do_expand=True)
        rows, _, weights, handle, _ = buffer.dispatch(x, topk_idx, topk_weights, **new)
        for wrong in (weights[:3], weights.bfloat16()):
            with pytest.raises(tokenyard.InvalidArgument, match=r"topk_weights.*float32, got"):
                buffer.combine(rows, handle, wrong)
        with pytest.raises(tokenyard.Unsupported, match="cache"):
            buffer.engram_write(x)
        with pytest.raises(tokenyard.Unsupported, match="all_gather"):
            buffer.create_agrs_session()
        with pytest.raises(tokenyard.Unsupported, match="host"):
            buffer.get_comm_stream()
        with pytest.raises(tokenyard.InvalidArgument, match="explicitly_destroy"):
            buffer.destroy()
        with pytest.raises(tokenyard.InvalidArgument, match="num_bytes"):
            deep_ep.ElasticBuffer(world)
        with pytest.raises(tokenyard.Unsupported, match="num_cpu_bytes"):
            deep_ep.ElasticBuffer(world, 2 << 20, 2 << 20)

    tokenyard.launch(layer, ranks=1, arena_bytes=128 << 20)
