"""Measures device time of calls: between two events, and by the profiler's kernels.

Ranks meet on the device before every measured call, so that neither a late host nor a late rank is
counted: a pause, behind which the host enqueues the call, then an all-reduce of one number. Its
kernel, the first after a pause, also parts the calls in a trace.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

PAUSE, MARK = "spin_kernel", "nccl"
"""Parts of the names of the pause's kernels, and of the all-reduce that follows it."""
CLOCK_MHZ = 1980
"""Clock of an H200's multiprocessors; on other GPUs the pause is slightly longer or shorter."""
WARM_UP = 3

Call = Callable[[int], Any]
"""Takes the number of an input set."""


class Work(NamedTuple):
    """An activity of the device."""

    name: str
    us: float
    """Duration, from the end of the stream's previous activity: a kernel may start before, and
    wait."""
    blocks: int = 0
    """Blocks of a kernel."""


class Meeting:
    """Aligns the ranks on the device."""

    def __init__(self) -> None:
        self._one = torch.ones(1, device="cuda")

    def hold(self, pause_us: float) -> None:
        """Enqueues the pause and an all-reduce."""
        torch.cuda._sleep(int(pause_us * CLOCK_MHZ))
        dist.all_reduce(self._one, op=dist.ReduceOp.MAX)


def event_times(
    meeting: Meeting, calls: Sequence[Call], count: int, sets: int, pause_us: float = 400
) -> list[list[float]]:
    """Returns us of `count` runs of each of `calls`, which take turns."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(count + WARM_UP):
        for call, mine in zip(calls, times, strict=True):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            meeting.hold(pause_us)
            begin.record()
            result = call(turn % sets)
            end.record()
            torch.cuda.synchronize()
            del result  # Not part of the call.
            if turn >= WARM_UP:
                mine.append(begin.elapsed_time(end) * 1e3)
    return times


def kernel_times(
    meeting: Meeting, calls: Sequence[Call], count: int, sets: int, pause_us: float = 400
) -> list[list[list[Work]]]:
    """Returns all activities of the device for each run of each call, in order."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for turn in range(count):
            for call in calls:
                meeting.hold(pause_us)
                call(turn % sets)
                torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        runs = parted(json.loads(path.read_text()))
    if len(runs) != count * len(calls):
        raise RuntimeError(f"the trace shows {len(runs)} calls, not {count * len(calls)}")
    return [runs[which :: len(calls)] for which in range(len(calls))]


def parted(trace: dict[str, Any]) -> list[list[Work]]:
    """Splits a trace at its marks, without the pauses."""
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    events = [event for event in trace["traceEvents"] if event.get("cat") in kinds]
    runs: list[list[Work]] = []
    paused = False
    ended: dict[Any, float] = {}
    for event in sorted(events, key=lambda event: event["ts"]):
        name, stream = event["name"], event.get("tid")
        begin, us = float(event["ts"]), float(event["dur"])
        end = begin + us
        us -= min(us, max(0.0, ended.get(stream, begin) - begin))
        ended[stream] = end
        if PAUSE in name:
            paused = True
        elif paused and name.startswith(MARK):
            # Only the first: a contender may itself use NCCL.
            runs.append([])
            paused = False
        elif runs and not paused:
            blocks = math.prod(event.get("args", {}).get("grid", [0]))
            runs[-1].append(Work(name, us, blocks))
    return runs


def slowest(mine: Sequence[float]) -> list[float]:
    """Returns the slowest rank's time of each run. Collective."""
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, list(mine))
    return [max(of_run) for of_run in zip(*everybody, strict=True)]


def spread(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    figures = dict(median=ordered[len(ordered) // 2], min=ordered[0], max=ordered[-1])
    return {name: round(value, 2) for name, value in figures.items()}
