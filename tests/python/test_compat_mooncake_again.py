"""The mooncake package: a second combine of a batch, after ranks were lost or unmasked."""

from __future__ import annotations

import pytest
from test_compat_mooncake import LOCAL, RANKS, SHAPE, everybody, inputs, torch

import tokenyard

if torch is not None:
    from mooncake.mooncake_ep_buffer import Buffer

pytestmark = pytest.mark.skipif(torch is None, reason="needs torch")


def test_a_batch_is_combined_again_without_a_rank_that_fell_silent() -> None:
    """Its missing rows move the others', which are still found."""

    def program(world: tokenyard.World) -> None:
        buffer = Buffer(world)
        x, picks, weights = inputs(world.rank)
        rows, _, handle, event, _ = buffer.dispatch(
            x, picks, everybody(), timeout_us=-1, use_fp8=False, **SHAPE
        )
        event.current_stream_wait()
        y = rows.clone()
        home, event, _ = buffer.combine(y, picks, weights, everybody(), -1, handle)
        event.current_stream_wait()
        assert torch.equal(home, x)
        if world.rank == 0:  # Before the others' rows.
            world.barrier("the others have gone on")
            return
        active = everybody()
        for _ in range(2):
            home, event, _ = buffer.combine(y, picks, weights, active, 300_000, handle)
            event.current_stream_wait()
            spoken = (picks >= LOCAL).float().mean(1, keepdim=True)
            assert torch.equal(home.float(), x.float() * spoken)
        assert active.tolist() == [0, 1, 1]
        world.barrier("the others have gone on")

    tokenyard.launch(program, ranks=RANKS)


def test_a_batch_from_before_a_restart_is_not_combined_again() -> None:
    def program(world: tokenyard.World) -> None:
        buffer = Buffer(world)
        x, picks, weights = inputs(world.rank)
        rows, _, handle, event, _ = buffer.dispatch(
            x, picks, everybody(), timeout_us=-1, use_fp8=False, **SHAPE
        )
        event.current_stream_wait()
        y = rows.clone()
        buffer.combine(y, picks, weights, everybody(), -1, handle)[1].current_stream_wait()
        world.barrier("no call is under way")
        buffer.update_ep_member()
        with pytest.raises(tokenyard.InvalidArgument, match="handle"):
            buffer.combine(y, picks, weights, everybody(), -1, handle)

    tokenyard.launch(program, ranks=RANKS)
