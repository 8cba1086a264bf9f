"""The mooncake package: its Buffer's calls in order, against expected results."""

from __future__ import annotations

import inspect
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from programs import assert_beside_the_real_one_it_stops

import tokenyard

PACKAGE = Path(__file__).parents[2] / "compat" / "mooncake"

try:
    import torch
except ModuleNotFoundError:
    torch = None  # Skipped test by test: a file without tests counts as a failure.
else:
    sys.path.insert(0, str(PACKAGE))
    from mooncake.mooncake_ep_buffer import Buffer, refuse_in_graph

pytestmark = pytest.mark.skipif(torch is None, reason="needs torch")

RANKS, EXPERTS, TOPK, HIDDEN, LARGEST = 3, 6, 2, 256, 12
LOCAL = EXPERTS // RANKS
SHAPE = dict(num_max_dispatch_tokens_per_rank=LARGEST, num_experts=EXPERTS)


def inputs(rank: int, seed: int = 0) -> tuple[Any, Any, Any]:
    generator = torch.Generator("cpu").manual_seed(10 * seed + rank)
    tokens = LARGEST - 4 * rank
    x = torch.randint(-8, 9, (tokens, HIDDEN), generator=generator).to(torch.bfloat16)
    picks = torch.rand(tokens, EXPERTS, generator=generator).argsort(1)[:, :TOPK].contiguous()
    return x, picks, torch.full((tokens, TOPK), 0.5)


def everybody() -> Any:
    return torch.ones(RANKS, dtype=torch.int32)


def there_and_back(buffer: Any, active: Any, seed: int, timeout_us: int, **how: Any) -> Any:
    """Runs identity experts with weights of one half."""
    x, picks, weights = inputs(buffer.rank, seed)
    rows, counts, handle, event, hook = buffer.dispatch(
        x,
        picks,
        active,
        timeout_us=timeout_us,
        use_fp8=False,
        return_recv_hook=how.get("hooks", False),
        **SHAPE,
    )
    (event.current_stream_wait if hook is None else hook)()
    y = rows
    if how.get("zero_copy"):
        buffer.get_next_combine_buffer(handle).copy_(rows)
        y = torch.empty(0)
    home, event, hook = buffer.combine(
        y,
        picks,
        weights,
        active,
        timeout_us,
        handle,
        zero_copy=how.get("zero_copy", False),
        return_recv_hook=how.get("hooks", False),
        out=torch.empty_like(x),
    )
    (event.current_stream_wait if hook is None else hook)()
    return home, counts


def program_healthy(world: tokenyard.World, how: dict[str, bool]) -> None:
    buffer = Buffer(world)
    active = everybody()
    for seed in range(3):
        home, _ = there_and_back(buffer, active, seed, -1, **how)
        assert torch.equal(home, inputs(world.rank, seed)[0])
    assert active.tolist() == [1] * RANKS


@pytest.mark.parametrize("how", [{}, {"hooks": True}, {"zero_copy": True}], ids=str)
def test_what_goes_out_comes_home(how: dict[str, bool]) -> None:
    tokenyard.launch(program_healthy, ranks=RANKS, args=(how,))


def test_fp8_rows_come_with_scales_and_ranges() -> None:
    def program(world: tokenyard.World) -> None:
        buffer = Buffer(world)
        x, picks, _ = inputs(world.rank)
        (rows, scales), counts, handle, event, hook = buffer.dispatch(
            x, picks, everybody(), timeout_us=-1, **SHAPE
        )
        event.current_stream_wait()
        assert hook is None
        assert rows.shape == (LOCAL, RANKS * LARGEST, HIDDEN)
        assert scales.shape == (LOCAL, RANKS * LARGEST, HIDDEN // 128)
        src_info, layout_range, *sizes = handle
        assert sizes == [LARGEST, HIDDEN, EXPERTS]
        assert handle[-1] == EXPERTS
        assert handle[2:4] == (LARGEST, HIDDEN)
        assert (layout_range.dtype, layout_range.shape) == (torch.int64, (LOCAL, RANKS))
        for local in range(LOCAL):
            assert counts[local] == (layout_range[local] & 0xFFFFFFFF).sum()
            for source in range(RANKS):
                sent, idx, _ = inputs(source)
                begin, count = divmod(layout_range[local, source].item(), 1 << 32)
                tokens = (idx == world.rank * LOCAL + local).any(1).nonzero().flatten()
                assert src_info[local, begin : begin + count].tolist() == tokens.tolist()
                row_scales = scales[local, begin : begin + count].repeat_interleave(128, 1)
                seen = rows[local, begin : begin + count].float() * row_scales
                if count:
                    assert (seen - sent[tokens].float()).abs().max() <= 0.5

    tokenyard.launch(program, ranks=RANKS)


def test_a_silent_rank_becomes_inactive_and_the_rest_is_exact() -> None:
    """Rank 1 makes no call; the others do not know."""

    def program(world: tokenyard.World) -> list[int]:
        buffer = Buffer(world)
        silent = world.rank == 1
        active = torch.tensor([0, 1, 0], dtype=torch.int32) if silent else everybody()
        home, _ = there_and_back(buffer, active, 0, 300_000)
        x, picks, _ = inputs(world.rank)
        there = picks.div(LOCAL, rounding_mode="floor")
        spoken = active.bool()[there].float().mean(1, keepdim=True)
        assert torch.equal(home.float(), x.float() * spoken)
        seen = active.tolist()
        # Members are updated, and all ranks are back.
        world.barrier("no call is under way")
        buffer.update_ep_member()
        active = everybody()
        home, _ = there_and_back(buffer, active, 1, -1)
        assert torch.equal(home, inputs(world.rank, 1)[0])
        assert active.tolist() == [1] * RANKS
        return seen

    assert tokenyard.launch(program, ranks=RANKS) == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]


def test_what_cannot_be_is_named() -> None:
    def program(world: tokenyard.World) -> None:
        buffer = Buffer(world)
        x, picks, weights = inputs(0)
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            buffer.dispatch(x, picks, torch.ones(2, dtype=torch.int32), timeout_us=-1, **SHAPE)
        assert caught.value.argument == "active_ranks"
        rows, _, handle, _, _ = buffer.dispatch(
            x, picks % EXPERTS, torch.ones(1), timeout_us=-1, use_fp8=False, **SHAPE
        )
        arguments = (rows, picks, weights, torch.ones(1), -1)
        for other in (tuple(handle), None):
            with pytest.raises(tokenyard.InvalidArgument, match="handle"):
                buffer.combine(*arguments, other)
            with pytest.raises(tokenyard.InvalidArgument, match="handle"):
                buffer.get_next_combine_buffer(other)
        with pytest.raises(tokenyard.InvalidArgument, match="zero_copy"):
            buffer.combine(*arguments, handle, zero_copy=True)
        with pytest.raises(tokenyard.InvalidArgument, match="arena_bytes") as caught:
            buffer.dispatch(x, picks, None, 1 << 15, EXPERTS, -1)
        assert "num_ep_buffer_bytes" in caught.value.__notes__[0]

    tokenyard.launch(program, ranks=1, arena_bytes=16 << 20)


def test_a_batch_is_combined_again() -> None:
    """As in Mooncake's own test: in place, then from the buffer's memory."""

    def program(world: tokenyard.World) -> None:
        buffer = Buffer(world)
        x, picks, weights = inputs(world.rank)
        rows, _, handle, _, _ = buffer.dispatch(
            x, picks, everybody(), timeout_us=-1, use_fp8=False, **SHAPE
        )
        y = rows.clone()
        for zero_copy in (False, True, False):
            if zero_copy:
                buffer.get_next_combine_buffer(handle).copy_(y)
            home, _, _ = buffer.combine(
                y, picks, weights, everybody(), -1, handle, zero_copy=zero_copy
            )
            assert torch.equal(home, x)

    tokenyard.launch(program, ranks=RANKS)


def test_a_batch_is_combined_again_as_it_was_received() -> None:
    """The second dispatch of its ids reuses the memory of its rows."""

    def program(world: tokenyard.World) -> None:
        buffer = Buffer(world)
        x, picks, weights = inputs(world.rank)
        rows, _, handle, _, _ = buffer.dispatch(
            x, picks, everybody(), timeout_us=-1, use_fp8=False, **SHAPE
        )
        received = rows.clone()
        for zero_copy in (False, False, True, False):
            if zero_copy:
                buffer.get_next_combine_buffer(handle).copy_(rows)
            home, _, _ = buffer.combine(
                rows, picks, weights, everybody(), -1, handle, zero_copy=zero_copy
            )
            assert torch.equal(home, x)
            # Places behind an expert's rows may be NaN.
            assert torch.equal(rows.view(torch.int16), received.view(torch.int16))

    tokenyard.launch(program, ranks=RANKS)


def test_received_scales_outlast_a_second_combine() -> None:
    def program(world: tokenyard.World) -> None:
        buffer = Buffer(world)
        x, picks, weights = inputs(world.rank)
        received, _, handle, _, _ = buffer.dispatch(x, picks, None, timeout_us=-1, **SHAPE)
        before = [part.contiguous().view(torch.uint8).clone() for part in received]
        results = torch.zeros(received[0].shape, dtype=torch.bfloat16)
        for _ in range(2):
            buffer.combine(results, picks, weights, None, -1, handle)
        for part, kept in zip(received, before, strict=True):
            assert torch.equal(part.contiguous().view(torch.uint8), kept)

    tokenyard.launch(program, ranks=RANKS)


def test_a_batch_is_combined_again_wherever_others_lie() -> None:
    """Its second dispatch uses other memory, its third that of the received rows."""

    def program(world: tokenyard.World) -> None:
        buffer = Buffer(world)
        x, picks, weights = inputs(world.rank)

        def dispatch(x: Any) -> tuple[Any, Any]:
            rows, _, handle, _, _ = buffer.dispatch(
                x, picks, None, timeout_us=-1, use_fp8=False, **SHAPE
            )
            return rows, handle

        def combine(batch: tuple[Any, Any]) -> Any:
            rows, handle = batch
            return buffer.combine(rows, picks, weights, None, -1, handle)[0]

        first, second = dispatch(x), dispatch(2 * x)
        assert torch.equal(combine(first), x)
        assert torch.equal(combine(second), 2 * x)
        assert torch.equal(combine(second), 2 * x)
        third = dispatch(4 * x)
        assert torch.equal(combine(second), 2 * x)
        buffer.get_next_combine_buffer(first[1])
        assert torch.equal(combine(third), 4 * x)

    tokenyard.launch(program, ranks=RANKS)


def test_no_graph_holds_what_the_host_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(tokenyard.Unsupported, match="active_ranks=None"):
        refuse_in_graph(0)
    refuse_in_graph(None)  # On the host there are no graphs.


def test_a_call_without_a_timeout_waits_as_long_as_it_can() -> None:
    """A rank that compiles meanwhile may take longer than the rendezvous timeout."""

    def program(world: tokenyard.World) -> list[int]:
        buffer = Buffer(world)
        active = everybody()
        there_and_back(buffer, active, 0, -1)
        if world.rank == 1:
            time.sleep(2.5)  # A while longer than the world waits.
        home, _ = there_and_back(buffer, active, 1, -1)
        assert torch.equal(home, inputs(world.rank, 1)[0])
        return active.tolist()

    seen = tokenyard.launch(program, ranks=RANKS, timeout=1)
    assert seen == [[1] * RANKS] * RANKS


def test_everybody_is_active_unless_told_otherwise() -> None:
    """Rows are FP8: None is Mooncake's default of `use_fp8`."""

    def program(world: tokenyard.World) -> None:
        buffer = Buffer(world)
        x, picks, weights = inputs(world.rank)
        rows, _, handle, _, _ = buffer.dispatch(x, picks, None, timeout_us=-1, **SHAPE)
        assert len(rows) == 2
        y = rows[0].float().nan_to_num() * rows[1].repeat_interleave(128, 2)
        y = y.nan_to_num(posinf=0, neginf=0).to(torch.bfloat16)
        home, _, _ = buffer.combine(y, picks, weights, None, -1, handle)
        assert (home.float() - x.float()).abs().max() <= 0.5

    tokenyard.launch(program, ranks=RANKS)


NONE = inspect.Parameter.empty
CALLS = {
    "__init__": dict(group=NONE, num_ep_buffer_bytes=0, disable_p2p=False),
    "get_ep_buffer_size_hint": dict(
        num_max_dispatch_tokens_per_rank=NONE, hidden=NONE, num_ranks=NONE, num_experts=NONE
    ),
    "dispatch": dict(
        x=NONE,
        topk_idx=NONE,
        active_ranks=NONE,
        num_max_dispatch_tokens_per_rank=NONE,
        num_experts=NONE,
        timeout_us=NONE,
        use_fp8=None,
        async_finish=False,
        return_recv_hook=False,
    ),
    "combine": dict(
        x=NONE,
        topk_idx=NONE,
        topk_weights=NONE,
        active_ranks=NONE,
        timeout_us=NONE,
        handle=NONE,
        zero_copy=False,
        async_finish=False,
        return_recv_hook=False,
        out=None,
    ),
    "get_next_combine_buffer": dict(handle=NONE),
    "update_ep_member": {},
}
"""Names, order and defaults of arguments are those of Mooncake's commit 3b5a594."""


@pytest.mark.parametrize("name", CALLS)
def test_calls_take_what_mooncakes_take(name: str) -> None:
    taken = inspect.signature(getattr(Buffer, name)).parameters
    defaults = {key: value.default for key, value in taken.items() if key != "self"}
    theirs = CALLS[name]
    assert list(defaults.items())[: len(theirs)] == list(theirs.items())
    assert NONE not in list(defaults.values())[len(theirs) :]


@pytest.mark.parametrize("build", ["", "_non_cuda", "_cuda13"])
def test_it_stands_in_for_nobody_unasked(tmp_path: Path, build: str) -> None:
    assert_beside_the_real_one_it_stops("mooncake", f"mooncake_transfer_engine{build}", tmp_path)


def test_a_size_below_nothing_is_refused() -> None:
    def layer(world: tokenyard.World) -> None:
        with pytest.raises(tokenyard.InvalidArgument, match="num_ep_buffer_bytes"):
            Buffer(world, -1)

    tokenyard.launch(layer, ranks=1)


@pytest.mark.parametrize("disable_p2p", [False, True])
def test_ranks_of_other_hosts_are_reached_by_put(disable_p2p: bool) -> None:
    def program(world: tokenyard.World) -> None:
        buffer = Buffer(world, disable_p2p=disable_p2p)
        for seed, hooks in enumerate((False, True)):
            x = inputs(world.rank, seed)[0]
            home, _ = there_and_back(buffer, everybody(), seed, -1, hooks=hooks)
            assert torch.equal(home, x * (TOPK / 2))
        (exchange,) = buffer._exchanges.values()
        assert exchange.paths.count("put") == RANKS - 1

    tokenyard.launch(program, ranks=RANKS, hosts=RANKS, arena_bytes=64 << 20)


def test_put_alone_needs_a_network_within_a_host() -> None:
    def program(world: tokenyard.World) -> None:
        buffer = Buffer(world, disable_p2p=True)
        with pytest.raises(tokenyard.Unsupported, match="host_name"):
            there_and_back(buffer, everybody(), 0, -1)

    tokenyard.launch(program, ranks=RANKS)


def test_the_hint_of_few_experts_is_of_as_many_picks() -> None:
    assert Buffer.get_ep_buffer_size_hint(128, 7168, 4, 8) > 0


def test_the_hint_is_what_peers_reach() -> None:
    hint = Buffer.get_ep_buffer_size_hint(128, 7168, 4, 288)
    assert (
        hint
        == tokenyard.LowLatency.memory(
            experts=288, hidden=7168, topk=16, tokens_max=128, ranks=4
        ).arena_bytes
    )
