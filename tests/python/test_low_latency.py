"""The low-latency exchange as users meet it: arrays, hooks, masks, memory."""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import pytest

import tokenyard
from tokenyard.expert_parallel.row_formats import LOW_LATENCY_ROWS as ROWS

HIDDEN, TOPK, TOKENS = 64, 2, 6
SIZES = dict(experts=4, hidden=HIDDEN, topk=TOPK, tokens_max=8)


def given(rank: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng((seed, rank))
    x = rng.standard_normal((TOKENS, HIDDEN)).astype(ml_dtypes.bfloat16)
    topk_idx = rng.random((TOKENS, 4)).argsort(axis=1)[:, :TOPK].copy()
    return x, topk_idx, np.full((TOKENS, TOPK), 0.5, np.float32)


def there_and_back(
    exchange: tokenyard.LowLatency, rank: int, seed: int, early: bool = False, **call
) -> bool:
    """Runs identity experts with weights of one half, so that results equal the inputs.

    `early`: whether dispatch gets the weights.
    """
    x, topk_idx, weights = given(rank, seed)
    told = weights if early else None
    got = exchange.dispatch(x, topk_idx, rows="bf16", topk_weights=told, **call)
    if got.hook is not None:
        got.hook()
    home = exchange.combine(got.x, got, None if early else weights, **call)
    if home.hook is not None:
        home.hook()
    exchange.wait()
    return bool((home.x == x).all()) and not home.lost.any()


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("hooks", [False, True])
def test_what_goes_out_comes_home(processes: bool, hooks: bool) -> None:
    results = tokenyard.launch(several_batches, ranks=2, args=(hooks,), processes=processes)
    assert results == [True, True]


def several_batches(world: tokenyard.World, hooks: bool) -> bool:
    exchange = tokenyard.LowLatency(world, **SIZES)
    fine = all(
        there_and_back(exchange, world.rank, seed, seed % 3 == world.rank, return_recv_hook=hooks)
        for seed in range(5)
    )
    exchange.close()
    return fine


def test_two_batches_overlap_on_one_exchange() -> None:
    def program(world: tokenyard.World) -> bool:
        exchange = tokenyard.LowLatency(world, **SIZES)
        x, topk_idx, weights = given(world.rank)
        other, other_idx, _ = given(world.rank, seed=2)
        # The second batch is sent while the first is in transit, and so on.
        first = exchange.dispatch(x, topk_idx, rows="bf16", return_recv_hook=True)
        second = exchange.dispatch(other, other_idx, rows="bf16", return_recv_hook=True)
        first.hook()
        first_home = exchange.combine(first.x, first, weights, return_recv_hook=True)
        second.hook()
        second_home = exchange.combine(second.x, second, weights, return_recv_hook=True)
        first_home.hook()
        second_home.hook()
        exchange.wait()
        return bool((first_home.x == x).all() and (second_home.x == other).all())

    assert tokenyard.launch(program, ranks=2) == [True, True]


def test_fp8_rows_and_scales_give_the_tokens_back() -> None:
    def program(world: tokenyard.World) -> float:
        exchange = tokenyard.LowLatency(world, **SIZES)
        x, topk_idx, _ = given(world.rank)
        got = exchange.dispatch(x, topk_idx)
        exchange.wait()
        assert got.x.dtype == ml_dtypes.float8_e4m3fn
        assert got.scales.shape == (2, 16, 1)
        worst = 0.0
        for expert in range(2):
            for source in range(2):
                begin, count = got.ranges[expert, source]
                for slot in range(begin, begin + count):
                    token = given(source)[0][got.source_token[expert, slot]].astype(np.float32)
                    row = got.x[expert, slot].astype(np.float32) * got.scales[expert, slot]
                    worst = max(worst, float(np.abs(row - token).max() / np.abs(token).max()))
        return worst

    # Half a unit in the last of four places, of the largest magnitude.
    assert max(tokenyard.launch(program, ranks=2)) <= 2.0**-4


def test_logarithms_come_home_within_their_error() -> None:
    def program(world: tokenyard.World) -> bool:
        exchange = tokenyard.LowLatency(world, **SIZES)
        x, topk_idx, weights = given(world.rank)
        got = exchange.dispatch(x, topk_idx, rows="bf16")
        home = exchange.combine(got.x, got, weights, use_logfmt=True)
        exchange.wait()
        error = np.abs(home.x.astype(np.float32) - x.astype(np.float32))
        return bool((error <= 0.03 * np.abs(x.astype(np.float32))).all())

    assert tokenyard.launch(program, ranks=2) == [True, True]


def test_statistics_add_up() -> None:
    def program(world: tokenyard.World) -> tuple[list[int], list[int]]:
        exchange = tokenyard.LowLatency(world, **SIZES)
        rows_total, expected = np.zeros(2, np.int32), np.zeros(2, np.int32)
        waited = np.zeros(2, np.int64)
        for seed in range(3):
            x, topk_idx, _ = given(world.rank, seed)
            got = exchange.dispatch(x, topk_idx, rows_total=rows_total, waited_cycles=waited)
            exchange.wait()
            expected += got.counts
        assert (waited > 0).all()
        # A combine waits for ranks whose sums have not arrived yet.
        waited[:] = 0
        late = world.rank == 0
        got = exchange.dispatch(x, topk_idx, rows="bf16")
        exchange.wait()
        if late:
            time.sleep(0.1)
        exchange.combine(got.x, got, given(0)[2], waited_cycles=waited)
        exchange.wait()
        assert waited[world.rank] == 0
        assert late or waited[0] > 0
        return rows_total.tolist(), expected.tolist()

    for seen, expected in tokenyard.launch(program, ranks=2):
        assert seen == expected


def test_a_masked_rank_is_named_and_what_it_lacks_counted() -> None:
    def program(world: tokenyard.World) -> list[tuple[int, str]]:
        exchange = tokenyard.LowLatency(world, **SIZES)
        x, topk_idx, weights = given(world.rank)
        alone = [rank == world.rank for rank in range(2)]
        got = exchange.dispatch(x, topk_idx, rows="bf16", active_ranks=alone)
        home = exchange.combine(got.x, got, weights)
        exchange.wait()
        elsewhere = (topk_idx // 2 != world.rank).sum(axis=1)
        assert home.lost.tolist() == elsewhere.tolist()
        masked = [(masked.rank, masked.why) for masked in exchange.failed_ranks()]
        world.barrier("nobody calls")
        exchange.clear_mask()
        world.barrier("masks are cleared")
        assert there_and_back(exchange, world.rank, 7)
        assert exchange.failed_ranks() == []
        epoch = exchange.epoch()
        world.barrier("streams are drained")
        exchange.restart(epoch + 5)
        world.barrier("all have restarted")
        assert there_and_back(exchange, world.rank, 8)
        assert exchange.epoch() == epoch + 6
        return masked

    assert tokenyard.launch(program, ranks=2) == [[(1, "left out")], [(0, "left out")]]


def test_a_rank_that_stays_away_is_named_with_what_was_awaited() -> None:
    def program(world: tokenyard.World) -> None:
        exchange = tokenyard.LowLatency(world, **SIZES)
        assert there_and_back(exchange, world.rank, 1)
        if world.rank == 1:
            world.barrier("the other one has given up")
            return
        x, topk_idx, weights = given(world.rank)
        got = exchange.dispatch(x, topk_idx, rows="bf16", timeout=0.2)
        home = exchange.combine(got.x, got, weights)
        exchange.wait()
        (masked,) = exchange.failed_ranks()
        assert (masked.rank, masked.why) == (1, "timeout")
        assert masked.phase == "low latency dispatch: ids"
        assert (masked.expected, masked.seen) == (2, 0)  # Nothing of that parity has arrived yet.
        assert masked.waited_s >= 0.2
        told = 'rank 1 did not answer in phase "low latency dispatch: ids": expected 2, seen 0'
        assert str(masked).startswith(told)
        mask = np.full(2, 7, np.int32)
        exchange.write_mask(mask)
        exchange.wait()
        assert (mask != 0).tolist() == [False, True]
        here = (topk_idx < 2).mean(axis=1, keepdims=True, dtype=np.float32)
        assert (home.x.astype(np.float32) == x.astype(np.float32) * here).all()
        assert home.lost.tolist() == (topk_idx >= 2).sum(axis=1).tolist()
        world.barrier("the other one has given up")

    tokenyard.launch(program, ranks=2)


def bits(*values: float) -> np.ndarray:
    return np.array(values, np.float32).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("rows", ROWS)
def test_what_is_no_number_arrives_as_such(rows: str) -> None:
    """All-ones payloads are not taken for empty staging, which is all ones."""

    def program(world: tokenyard.World) -> None:
        exchange = tokenyard.LowLatency(world, experts=2, hidden=160, topk=1, tokens_max=4)
        x = np.ones((4, 160), ml_dtypes.bfloat16)
        x[0] = np.nan
        x[1].view(np.uint16)[:] = 0xFFFF
        x[2, 3], x[2, 150] = np.inf, np.nan
        to_the_other = np.full((4, 1), 1 - world.rank)
        got = exchange.dispatch(x, to_the_other, rows=rows, timeout=5)
        exchange.wait()
        assert got.counts.tolist() == [4]
        seen = got.x[0].astype(np.float32)
        assert np.isnan(seen[:2]).all()
        assert np.isnan(seen[2]).nonzero()[0].tolist() == ([3, 150] if rows == "fp8" else [150])
        if rows != "bf16":
            # With an infinity in its group, the scale makes finite values zero.
            assert not seen[2, :3].any()
            assert not seen[2, 4:128].any()
        assert (seen[2, 128:150] == seen[3, 128:150]).all()
        y = np.ones((1, 8, 160), ml_dtypes.bfloat16)
        y[0, 1].view(np.uint16)[:] = 0xFFFF
        y[0, 2, 5] = -np.inf
        weights = np.array([[-2], [1], [1], [np.nan]], np.float32)
        home = exchange.combine(y, got, weights, timeout=5)
        exchange.wait()
        assert (home.x[0] == bits(-2)).all()
        assert np.isnan(home.x[1].astype(np.float32)).all()
        assert home.x[2, 5] == -np.inf
        assert (np.delete(home.x[2], 5) == 1).all()
        assert np.isnan(home.x[3].astype(np.float32)).all()
        assert not home.lost.any()
        assert exchange.failed_ranks() == []

    tokenyard.launch(program, ranks=2)


def test_a_caller_may_give_fp8_of_ones() -> None:
    def program(world: tokenyard.World) -> None:
        exchange = tokenyard.LowLatency(world, experts=2, hidden=160, topk=1, tokens_max=4)
        x = np.full((4, 160), 0xFF, np.uint8).view(ml_dtypes.float8_e4m3fn)
        to_the_other = np.full((4, 1), 1 - world.rank)
        ones = {"fp8": np.full((4, 2), 0xFFFFFFFF, np.uint32).view(np.float32)}
        ones["fp8_ue8m0"] = np.full((4, 1), -1, np.int32)
        for rows, scales in ones.items():
            got = exchange.dispatch(x, to_the_other, rows=rows, scales=scales, timeout=5)
            exchange.wait()
            assert got.counts.tolist() == [4]
            assert np.isnan(got.x[0, :4].astype(np.float32)).all()
            words = np.ascontiguousarray(got.scales[0, :4]).view(np.int32)
            if rows == "fp8_ue8m0":
                assert (words == -1).all()
            else:
                assert np.isnan(words.view(np.float32)).all()
            del got
        assert exchange.failed_ranks() == []

    tokenyard.launch(program, ranks=2)


def test_weights_of_no_expert_count_for_nothing() -> None:
    def program(world: tokenyard.World) -> None:
        exchange = tokenyard.LowLatency(world, **SIZES)
        x, topk_idx, weights = given(world.rank)
        topk_idx[::2, 1] = -1
        weights[::2, 1] = np.nan
        got = exchange.dispatch(x, topk_idx, rows="bf16")
        home = exchange.combine(got.x, got, weights)
        exchange.wait()
        picks = (topk_idx >= 0).sum(axis=1, keepdims=True).astype(np.float32)
        assert (home.x.astype(np.float32) == x.astype(np.float32) * picks / 2).all()

    tokenyard.launch(program, ranks=2)


def test_arguments_are_named() -> None:
    def program(world: tokenyard.World) -> list[str]:
        exchange = tokenyard.LowLatency(world, **SIZES)
        x, topk_idx, weights = given(0)
        got = exchange.dispatch(x, topk_idx, rows="bf16")
        named = []

        def refused(call, *arguments, **options) -> None:
            # The error keeps its batch alive.
            try:
                call(*arguments, **options)
            except tokenyard.InvalidArgument as error:
                named.append(error.argument)
            else:
                named.append("nothing")

        refused(exchange.dispatch, x, topk_idx, rows="fp4")
        refused(exchange.dispatch, x.astype(np.float32), topk_idx)
        refused(exchange.dispatch, x[:, :32], topk_idx)
        refused(exchange.dispatch, x, topk_idx.astype(np.int16))
        refused(exchange.dispatch, x, topk_idx, rows="fp8", scales=weights)
        refused(exchange.dispatch, x, topk_idx, active_ranks=[])
        refused(exchange.dispatch, x, topk_idx, timeout=0)
        refused(exchange.combine, got.x[:1], got, weights)
        refused(exchange.combine, got.x, got, weights[:2])
        refused(exchange.combine, got.x, "got", weights)
        refused(exchange.combine, got.x, got, None)
        exchange.combine(got.x, got, weights)
        refused(exchange.combine, got.x, got, weights)
        refused(exchange.dispatch, x, topk_idx, rows="bf16", topk_weights=weights[:2])
        got = exchange.dispatch(x, topk_idx, rows="bf16", topk_weights=weights)
        refused(exchange.combine, got.x, got, weights)
        return named

    names = ["rows", "x", "x", "topk_idx", "x", "active_ranks", "timeout"]
    names += ["y", "topk_weights", "received", "topk_weights", "handle"]
    names += ["topk_weights", "topk_weights"]
    assert tokenyard.launch(program, ranks=1) == [names]


def test_memory_is_told_before_anything_is_made() -> None:
    sizes = dict(experts=288, hidden=7168, topk=8, tokens_max=128, ranks=4)
    fp8 = tokenyard.LowLatency.memory(**sizes, bf16_rows=False)
    both = tokenyard.LowLatency.memory(**sizes)
    rows = 72 * 4 * 128 * 7168
    assert fp8.device_bytes > 2 * rows
    assert both.device_bytes - fp8.device_bytes == 2 * rows
    assert both.combine_buffer_bytes == fp8.combine_buffer_bytes == 2 * rows
    with pytest.raises(tokenyard.InvalidArgument):
        tokenyard.LowLatency.memory(**{**sizes, "hidden": 40})


def test_tensors_come_back_as_tensors() -> None:
    torch = pytest.importorskip("torch")

    def program(world: tokenyard.World) -> bool:
        exchange = tokenyard.LowLatency(world, **SIZES)
        x, topk_idx, weights = given(world.rank)
        tensor = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
        idx = torch.from_numpy(topk_idx)
        got = exchange.dispatch(tensor, idx)
        assert got.x.dtype == torch.float8_e4m3fn
        assert got.scales.dtype == torch.float32
        del got
        got = exchange.dispatch(tensor, idx, rows="bf16")
        home = exchange.combine(got.x, got, torch.from_numpy(weights))
        exchange.wait()
        return bool((home.x == tensor).all())

    assert tokenyard.launch(program, ranks=2) == [True, True]
