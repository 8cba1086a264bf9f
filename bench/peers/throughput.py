"""Measures throughput dispatch and combine, ours and a peer's in turn, in one process per rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from batches import SETS, Batch, Shape, busiest_remote_rows, draw_sets
from checks import check_throughput
from contender import Throughput
from timing import Call, Meeting, event_times, kernel_times, slowest, spread

LINK_BYTES_PER_US = 347e3
"""Rate of a GPU's links by stores: H200, NVLink, 8 or more multiprocessors."""
CALLS, PROFILED = 20, 8


def measure(
    ours: Throughput, peer: Throughput, shape: Shape, rank: int, budgets: list[int]
) -> Iterator[dict[str, Any]]:
    """Checks, then measures; returns the rows of the result, the same on all ranks. Collective."""
    everybody = draw_sets(shape)
    mine = [batches[rank] for batches in everybody]
    floors = floors_of(everybody[0])
    meeting = Meeting()
    for sms in budgets:
        for contender in (ours, peer):
            contender.use(sms, mine[0])
            check_throughput(contender, everybody[0], rank)
        cases = dict(calls_of(ours, mine))
        for case, theirs in calls_of(peer, mine):
            times = event_times(meeting, (cases[case], theirs), CALLS, SETS)
            runs = kernel_times(meeting, (cases[case], theirs), PROFILED, SETS)
            sums = [[sum(work.us for work in run) for run in of_one] for of_one in runs]
            figures = [spread(slowest(of_one)) for of_one in (*sums, *times)]
            yield dict(
                case=case,
                gpus=shape.ranks,
                ranks=shape.ranks,
                tokens=shape.tokens,
                hidden=shape.hidden,
                sms=sms,
                unit="us",
                ours=figures[0],
                peer=dict(name=peer.name, **figures[1]),
                ours_call=figures[2],
                peer_call=figures[3],
                kernels=[sorted({work.name.partition("(")[0] for work in run[-1]}) for run in runs],
                floor=floors[case],
            )


def calls_of(contender: Throughput, mine: list[Batch]) -> Iterator[tuple[str, Call]]:
    """Returns the measured calls by name. Collective."""
    yield "dispatch bf16", lambda number: contender.dispatch(mine[number])
    yield "dispatch fp8", lambda number: contender.dispatch(mine[number], fp8=True)
    rows = contender.dispatch(mine[0])
    yield (
        "dispatch bf16, route kept",
        lambda number: contender.dispatch_again(mine[number], rows),
    )
    y = contender.output(rows)
    y.copy_(rows.x)
    yield "combine bf16", lambda _: contender.combine(y, rows)
    ordinary = y.clone()
    yield "combine bf16, ordinary y", lambda _: contender.combine(ordinary, rows)
    if "dispatch bf16 by expert" in contender.lacks:
        return
    yield "dispatch bf16 by expert", lambda number: contender.dispatch_by_expert(mine[number])
    yield (
        "dispatch bf16 by expert, at once",
        lambda number: contender.dispatch_by_expert(mine[number], at_once=True),
    )
    grouped = contender.dispatch_by_expert(mine[0])
    yield (
        "combine bf16 by expert",
        lambda _: contender.combine_by_expert(grouped.x, grouped),
    )


def floors_of(everybody: list[Batch]) -> dict[str, float]:
    """Returns us to move the busiest rank's bytes over its links."""
    shape = everybody[0].shape
    rows = busiest_remote_rows(everybody)
    metadata = shape.topk * 8 + 4
    bf16, fp8 = shape.hidden * 2, shape.hidden + shape.hidden // 128 * 4
    row_bytes = {
        "dispatch bf16": bf16 + metadata,
        "dispatch fp8": fp8 + metadata,
        "dispatch bf16, route kept": bf16,
        "dispatch bf16 by expert": bf16 + metadata,
        "dispatch bf16 by expert, at once": bf16 + metadata,
        "combine bf16": bf16,
        "combine bf16, ordinary y": bf16,
        "combine bf16 by expert": bf16,
    }
    return {case: round(rows * length / LINK_BYTES_PER_US, 2) for case, length in row_bytes.items()}
