"""Measures low-latency dispatch and combine, ours and a peer's, in trains that take turns.

A train is some pairs of dispatch and combine behind a pause, so that the host is ahead of the
device throughout. Its first pair only brings the ranks together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from batches import SETS, Batch, Shape, busiest_remote_rows, draw_sets
from checks import check_low_latency
from contender import Between, LowLatency, nothing
from throughput import LINK_BYTES_PER_US
from timing import Meeting, Work, kernel_times, slowest, spread

PAIRS, TRAINS, PROFILED = 20, 10, 5
PAUSE_US = 8000
HALVES = ("dispatch sends", "dispatch receives", "combine sends", "combine receives")
CALLS = ("dispatch", "combine")
MEANWHILE_VALUES = 1 << 25
"""Size of a sum that takes some 60 us on H200: long enough for all rows to arrive."""

Run = list[Work]


class Trains:
    """The trains of one contender."""

    def __init__(self, contender: LowLatency, mine: list[Batch]) -> None:
        self._contender, self._mine = contender, mine
        x, _, handle = contender.dispatch(mine[0], hooks=False)
        # The contents of y do not affect the time.
        self._y = torch.randn(x.shape, dtype=torch.bfloat16, device=x.device)
        contender.combine(self._y, mine[0], handle, hooks=False)
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def run(self, hooks: bool, between: Between = nothing) -> None:
        for pair in range(PAIRS + 1):
            if pair == 1:
                self._events[0].record()
            batch = self._mine[pair % SETS]
            _, _, handle = self._contender.dispatch(batch, hooks, between)
            self._contender.combine(self._y, batch, handle, hooks, between)
        self._events[1].record()

    def us_a_pair(self) -> float:
        """Returns the times of the last train, which must have ended."""
        return self._events[0].elapsed_time(self._events[1]) * 1e3 / PAIRS


def measure(
    ours: LowLatency, peer: LowLatency, shape: Shape, rank: int, tokens: list[int]
) -> Iterator[dict[str, Any]]:
    """Checks, then measures; returns the rows of the result, the same on all ranks. Collective."""
    meeting = Meeting()
    for count in tokens:
        now = Shape(shape.ranks, count, shape.hidden, shape.topk, shape.experts)
        everybody = draw_sets(now)
        mine = [batches[rank] for batches in everybody]
        for contender in (ours, peer):
            for hooks in (False, True) if contender.hooks else (False,):
                check_low_latency(contender, mine[0], hooks)
        trains = [Trains(contender, mine) for contender in (ours, peer)]

        pairs: list[list[float]] = [[], []]
        for turn in range(TRAINS + 1):
            for train, us in zip(trains, pairs, strict=True):
                meeting.hold(PAUSE_US)
                train.run(hooks=False)
                torch.cuda.synchronize()
                if turn:
                    us.append(train.us_a_pair())
        whole = [
            [halved(phases(run)) for run in of_one] for of_one in profiled(meeting, trains, False)
        ]
        times = {
            "dispatch fp8, in kernel": [[run[0] for run in of_one] for of_one in whole],
            "combine bf16, in kernel": [[run[1] for run in of_one] for of_one in whole],
            "both, per pair": pairs,
        }
        if peer.hooks:
            halves = [[phases(run) for run in of_one] for of_one in profiled(meeting, trains, True)]
            for place, half in enumerate(HALVES):
                times[f"hooks: {half}"] = [[run[place] for run in of_one] for of_one in halves]
        floors = floors_of(everybody)
        for case, (of_ours, of_peer) in times.items():
            yield dict(
                case=case,
                gpus=shape.ranks,
                ranks=shape.ranks,
                tokens=count,
                hidden=shape.hidden,
                sms=0,
                unit="us",
                ours=spread(slowest(of_ours)),
                peer=dict(name=peer.name, **spread(slowest(of_peer))),
                floor=floors.get(case),
            )
        if peer.hooks:
            yield from held_rows(meeting, trains, now, peer.name)


def held_rows(
    meeting: Meeting, trains: list[Trains], shape: Shape, peer: str
) -> Iterator[dict[str, Any]]:
    """Measures what calls with hooks take from other work.

    That is the time of their kernels, each times the multiprocessors that it holds, with other work
    between the halves that lasts until all rows have arrived.
    """
    other = torch.ones(MEANWHILE_VALUES, device="cuda")
    runs = profiled(meeting, trains, True, lambda: other.add_(1))
    held = [[multiprocessor_us(run) for run in of_one] for of_one in runs]
    for place, call in enumerate(CALLS):
        of_ours, of_peer = ([run[place] for run in of_one] for of_one in held)
        yield dict(
            case=f"hooks: {call}, multiprocessors held",
            gpus=shape.ranks,
            ranks=shape.ranks,
            tokens=shape.tokens,
            hidden=shape.hidden,
            sms=0,
            unit="us of a multiprocessor",
            ours=spread(slowest(of_ours)),
            peer=dict(name=peer, **spread(slowest(of_peer))),
            floor=None,
        )


def multiprocessor_us(run: Run) -> tuple[float, ...]:
    """Returns time times blocks of dispatch and combine; a block occupies one multiprocessor."""
    return tuple(
        sum(work.us * work.blocks for work in run if call in work.name) / (PAIRS + 1)
        for call in CALLS
    )


def profiled(
    meeting: Meeting, trains: list[Trains], hooks: bool, between: Between = nothing
) -> list[list[Run]]:
    calls = [lambda _, train=train: train.run(hooks, between) for train in trains]
    return kernel_times(meeting, calls, PROFILED, 1, PAUSE_US)


def phases(run: Run) -> list[float]:
    """Returns mean us of each of a pair's kernels, in order, over a train without its first pair.

    Other activity of the device is counted with the kernel before it.
    """
    kernels: list[float] = []
    for work in run:
        if any(call in work.name for call in CALLS):
            kernels.append(work.us)
        elif kernels:
            kernels[-1] += work.us
    each, left = divmod(len(kernels), PAIRS + 1)
    if left or each not in (2, 4):
        names = sorted({work.name for work in run})
        raise RuntimeError(f"{len(kernels)} kernels in a train of {PAIRS + 1} pairs: {names}")
    return [sum(kernels[each + k :: each]) / PAIRS for k in range(each)]


def halved(kernels: list[float]) -> tuple[float, float]:
    """Splits kernels into dispatch and combine, of one or two kernels each."""
    middle = len(kernels) // 2
    return sum(kernels[:middle]), sum(kernels[middle:])


def floors_of(everybody: list[list[Batch]]) -> dict[str, float]:
    """Returns us to move the busiest rank's bytes over its links, without latency."""
    hidden = everybody[0][0].shape.hidden
    rows = sum(busiest_remote_rows(of_set) for of_set in everybody) / len(everybody)
    fp8, bf16 = hidden * (1 + 1 / 32), hidden * 2
    lengths = {
        "dispatch fp8, in kernel": fp8,
        "combine bf16, in kernel": bf16,
        "both, per pair": fp8 + bf16,
    }
    return {case: round(rows * length / LINK_BYTES_PER_US, 2) for case, length in lengths.items()}
