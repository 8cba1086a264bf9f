"""Metrics of exchanges and of their job, and Prometheus' text of them."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from pages import ROOT
from ranks import file_store

import tokenyard
from tokenyard.expert_parallel.call_totals import CallTotals
from tokenyard.metrics import MEANING, NOT_COUNTED

HIDDEN, TOKENS, CALLS = 64, 5, 30


def as_library(array: Any, library: str) -> Any:
    """Returns an array of this library; float32 becomes bfloat16 if it is a row."""
    rows = array.dtype == np.float32 and array.shape[1] > 1
    if library == "numpy":
        return array.astype(ml_dtypes.bfloat16) if rows else array
    import torch

    tensor = torch.from_numpy(array)
    return tensor.bfloat16() if rows else tensor


BF16 = 2


def exchanged(world: tokenyard.World) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rank 0 sends its tokens to rank 1 alone, rank 1 to both."""
    exchange = tokenyard.ExpertParallel(world, experts=4, hidden=HIDDEN, topk=2, tokens_max=TOKENS)
    fresh = exchange.metrics()
    x = np.ones((TOKENS, HIDDEN), ml_dtypes.bfloat16)
    ids = np.tile([2, 3] if world.rank == 0 else [0, 2], (TOKENS, 1))
    scales = np.ones((TOKENS, 3), np.float32)
    received = exchange.dispatch(x, ids, scales=scales)
    exchange.dispatch(x, route=received.route)
    exchange.combine(received.x, received)
    exchange.dispatch(x, ids, received_tokens_max=4 * TOKENS)
    world.barrier()
    return fresh, exchange.metrics()


def test_rows_and_bytes_are_counted_by_peer() -> None:
    (fresh, zero), (_, one) = tokenyard.launch(exchanged, ranks=2)
    assert fresh["dispatch_calls"] == 0
    assert fresh["slowest_rank"] is None
    assert fresh["received_rows_by_peer"] == [0, 0]
    for rank, metrics in enumerate((zero, one)):
        assert metrics["exchange"] == "expert_parallel"
        assert metrics["rank"] == rank
        assert (metrics["dispatch_calls"], metrics["combine_calls"]) == (3, 1)
        assert metrics["uncounted_calls"] == 1, "the call with received_tokens_max"
        assert metrics["dispatched_tokens"] == 3 * TOKENS
        assert metrics["missing"] == []
        assert len(metrics["wait_seconds_by_peer"]) == 2
        assert metrics["slowest_rank"] in (None, 1 - rank)
        assert metrics["slowest_rank"] is not None or metrics["wait_seconds_by_peer"][1 - rank] == 0
    assert zero["received_rows_by_peer"] == [0, 2 * TOKENS]
    assert one["received_rows_by_peer"] == [2 * TOKENS, 2 * TOKENS]
    row, scales = BF16 * HIDDEN, 4 * 3
    assert zero["received_bytes_by_peer"] == [0, TOKENS * (2 * row + scales)]
    assert zero["returned_rows_by_peer"] == [0, TOKENS]
    assert one["returned_bytes_by_peer"] == [TOKENS * row, TOKENS * row]
    # Counted on the device, so without a host that reads counts, too; a reused route counts none.
    assert zero["received_choices_by_expert"] == [2 * TOKENS, 0]
    assert one["received_choices_by_expert"] == [4 * TOKENS, 2 * TOKENS]


def test_links_between_hosts_are_counted() -> None:
    (fresh, zero), (_, one) = tokenyard.launch(exchanged, ranks=2, hosts=2)
    assert fresh["link_sent_bytes_by_peer"] == [0, 0]
    assert fresh["slowest_host"] is None
    assert zero["link_sent_bytes_by_peer"] == one["link_arrived_bytes_by_peer"][::-1]
    assert one["link_sent_bytes_by_peer"] == zero["link_arrived_bytes_by_peer"][::-1]
    # Rank 1's own rows do not travel.
    assert zero["link_sent_bytes_by_peer"][1] >= 3 * TOKENS * BF16 * HIDDEN
    assert one["link_sent_bytes_by_peer"][1] == 0
    for rank, metrics in enumerate((zero, one)):
        assert (metrics["slowest_host"], metrics["slowest_rail"]) == (1 - rank, 0)
        assert len(metrics["link_credit_wait_seconds_by_peer"]) == 2
        text = tokenyard.prometheus_text(metrics)
        assert f'tokenyard_expert_parallel_slowest_host{{rank="{rank}"}} {1 - rank}' in text
        assert "tokenyard_expert_parallel_link_row_wait_seconds_total" in text
        assert "tokenyard_expert_parallel_send_wait_seconds_total" in text


def test_rows_grouped_as_they_arrive_are_counted() -> None:
    def grouped(world: tokenyard.World) -> dict[str, Any]:
        exchange = tokenyard.ExpertParallel(world, experts=2, hidden=8, topk=1, tokens_max=4)
        exchange.dispatch_by_expert(np.ones((3, 8), np.float32), np.array([[0], [1], [1]]))
        return exchange.metrics()

    zero, one = tokenyard.launch(grouped, ranks=2)
    assert zero["received_rows_by_peer"] == [1, 1]
    assert one["received_rows_by_peer"] == [2, 2]
    assert one["dispatch_calls"] == 1


def served(world: tokenyard.World, totals: bool = False) -> dict[str, Any]:
    options: Any = dict(experts=2, hidden=64, topk=1, tokens_max=4, totals=totals)
    exchange = tokenyard.LowLatency(world, **options)
    x = np.ones((3, 64), ml_dtypes.bfloat16)
    ids, weights = np.array([[0], [1], [1]]), np.ones((3, 1), np.float32)
    received = exchange.dispatch(x, ids, rows="bf16")
    exchange.combine(received.x, received, weights)
    try:
        exchange.dispatch(x, ids, rows="bf16", sms=1)
    except tokenyard.RefusedBatch as refused:
        exchange.combine(refused.received.x, refused.received)
    exchange.wait()
    world.barrier()
    exchange.update_mask(1 - world.rank, True)
    return exchange.metrics()


def test_low_latency_counts_calls_and_says_what_is_missing() -> None:
    for rank, metrics in enumerate(tokenyard.launch(served, ranks=2)):
        assert metrics["exchange"] == "low_latency"
        assert metrics["rank"] == rank
        assert (metrics["dispatch_calls"], metrics["refused_dispatch_calls"]) == (2, 1)
        assert metrics["combine_calls"] == 2
        assert metrics["dispatched_tokens"] == 3, "a refused batch has none of this rank's"
        assert metrics["masked_by_peer"] == [int(peer != rank) for peer in range(2)]
        assert metrics["missing"] == list(NOT_COUNTED)
        assert "received_choices_by_expert" not in metrics


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_low_latency_adds_up_rows_and_waiting_where_it_is_asked_to(library: str) -> None:
    if library == "torch":
        pytest.importorskip("torch")

    def program(world: tokenyard.World) -> list[dict[str, Any]]:
        exchange = tokenyard.LowLatency(
            world, experts=2, hidden=64, topk=1, tokens_max=4, totals=True
        )
        x = np.ones((3, 64), np.float32)
        ids, weights = np.array([[0], [1], [1]]), np.ones((3, 1), np.float32)
        found = [exchange.metrics()]
        x, ids, weights = (as_library(each, library) for each in (x, ids, weights))
        for hook in (False, True):
            got = exchange.dispatch(x, ids, rows="bf16", return_recv_hook=hook)
            if hook:
                got.hook()
            exchange.combine(got.x, got, weights)
            found.append(exchange.metrics())
        own = as_library(np.zeros(1, np.int32), library)
        for _ in range(CALLS):
            got = exchange.dispatch(x, ids, rows="bf16", rows_total=own)
            exchange.combine(got.x, got, weights)
        world.barrier()
        found.append(exchange.metrics() | {"own": own.tolist()})
        return found

    found = tokenyard.launch(program, ranks=2)
    for rank, (fresh, once, twice, apart) in enumerate(found):
        rows = 2 if rank == 0 else 4
        assert (fresh["received_choices_by_expert"], fresh["slowest_rank"]) == ([0], None)
        assert once["received_choices_by_expert"] == [rows]
        assert twice["received_choices_by_expert"] == [2 * rows]
        assert apart["received_choices_by_expert"] == [2 * rows], "counted in the caller's own"
        assert apart["own"] == [CALLS * rows]
        assert len(apart["wait_cycles_by_peer"]) == 2
        assert apart["slowest_rank"] in (None, 1 - rank)
        assert apart["missing"] == []
        assert twice["received_bytes"] == 2 * rows * 64 * 2
        assert (fresh["lost_choices"], apart["lost_choices"]) == (0, 0)
    # In so many calls at least one rank has waited for the other.
    assert {found[rank][-1]["slowest_rank"] for rank in range(2)} != {None}


@pytest.mark.parametrize("hook", [False, True])
def test_low_latency_adds_up_bytes_of_formats_and_lost_choices(hook: bool) -> None:
    def program(world: tokenyard.World) -> list[dict[str, Any]]:
        exchange = tokenyard.LowLatency(
            world, experts=2, hidden=256, topk=2, tokens_max=4, totals=True
        )
        x, ids = np.ones((3, 256), ml_dtypes.bfloat16), np.array([[0, 1]] * 3)
        y, weights = np.zeros((1, 8, 256), ml_dtypes.bfloat16), np.ones((3, 2), np.float32)

        def step(rows: str, active: list[bool] | None = None) -> None:
            got = exchange.dispatch(x, ids, rows=rows, return_recv_hook=hook, active_ranks=active)
            if got.hook is not None:
                got.hook()
            home = exchange.combine(y, got, weights, return_recv_hook=hook)
            if home.hook is not None:
                home.hook()

        for rows in ("bf16", "fp8", "fp8_ue8m0"):
            step(rows)
        all_here = exchange.metrics()
        world.barrier()
        step("bf16", [rank == world.rank for rank in range(2)])
        exchange.wait()
        return [all_here, exchange.metrics()]

    for all_here, alone in tokenyard.launch(program, ranks=2):
        assert all_here["received_bytes"] == 6 * (512 + (256 + 8) + (256 + 4))
        assert all_here["lost_choices"] == 0
        assert alone["received_bytes"] == all_here["received_bytes"] + 3 * 512
        assert alone["lost_choices"] == 3, "each token lacks the other rank's expert"


def test_a_total_of_rows_passes_32_bits() -> None:
    totals = CallTotals(None, experts=2, ranks=1, row_bytes=[8])
    for count, expected in (
        ([2**31 - 1, 1], [2**31 - 1, 1]),
        ([-(2**31), 1], [2**31, 1]),
        ([5, 2], [2**32 + 5, 2]),
    ):
        totals.rows(8)[:] = count
        assert totals.read()["received_choices_by_expert"] == expected


def test_prometheus_reads_it() -> None:
    text = tokenyard.prometheus_text(
        *(
            metrics | {"layer": f'{at} "a\\b"\n'}
            for at, (_, metrics) in enumerate(tokenyard.launch(exchanged, ranks=2))
        ),
        {"exchange": "low_latency", "rank": 3, "masked_by_peer": [0, 1], "slowest_rank": None},
        {"job": "train", "rank": 3, "epoch": 2, "active": 2, "active_ranks": [0, 3], "lost": 1},
    )
    sample = re.compile(
        r"^tokenyard_\w+\{rank=\"\d\"(,\w+=\"(\\[\\\"n]|[^\"\\\n])*\")*\} \d+(\.\d+)?(e-\d+)?$"
    )
    lines = text.splitlines()
    assert all(line.startswith("# ") or sample.match(line) for line in lines), text
    name = "tokenyard_expert_parallel_received_bytes_total"
    assert lines.count(f"# TYPE {name} counter") == 1, "one family, of two exchanges"
    labels = r'rank="1",layer="1 \"a\\b\"\n",peer="0"'
    assert f"{name}{{{labels}}} {5 * (2 * 128 + 12)}" in lines
    assert "# TYPE tokenyard_low_latency_masked gauge" in lines
    assert 'tokenyard_low_latency_masked{rank="3",peer="1"} 1' in lines
    assert "low_latency_slowest_rank" not in text
    assert "# TYPE tokenyard_job_active gauge" in lines
    assert 'tokenyard_job_active{rank="3",job="train"} 2' in lines
    assert 'tokenyard_job_lost_total{rank="3",job="train"} 1' in lines


def of_job(world: tokenyard.World) -> dict[str, Any]:
    return world.job.metrics()


def test_an_exchange_and_its_job_are_one_text() -> None:
    (job,) = tokenyard.launch(of_job, ranks=1, processes=True)
    (_, exchange), _ = tokenyard.launch(exchanged, ranks=2)
    lines = tokenyard.prometheus_text(exchange, job).splitlines()
    assert 'tokenyard_job_places{rank="0"} 1' in lines
    assert 'tokenyard_job_active{rank="0"} 1' in lines
    assert 'tokenyard_job_lost_total{rank="0"} 0' in lines
    assert 'tokenyard_expert_parallel_combine_calls_total{rank="0"} 1' in lines


def test_every_key_has_a_meaning_and_a_line_in_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    (_, metrics), _ = tokenyard.launch(exchanged, ranks=2, hosts=2)
    served_metrics = tokenyard.launch(partial(served, totals=True), ranks=2)[0]
    with tokenyard.connect(file_store(tmp_path), secret="s", rank=0, size=1) as job:
        counted = job.metrics()
    assert (counted["epochs"], counted["joined"], counted["links_made"]) == (1, 1, 0)
    (network,) = tokenyard.launch(lambda world: world.network_metrics(), ranks=1)
    lists = {"missing", "active_ranks", "waiting_ranks"}
    every = set(metrics) | set(served_metrics) | set(counted) | set(network)
    keys = every - {"exchange", "rank"} - lists
    assert keys == set(MEANING)
    for key in keys:
        assert re.search(rf"^\| [^|]*`{key}`", page, re.MULTILINE), key
