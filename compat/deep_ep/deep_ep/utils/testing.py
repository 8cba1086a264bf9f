"""Stopwatches of DeepEP's tests. They need a GPU."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

CACHE_BYTES = 256 << 20
"""More than a GPU's level-two cache holds."""
SPIN_CYCLES = 20_000_000
"""For how long a GPU is kept busy, so that all ranks' calls are enqueued before any runs."""
INSTEAD = {
    "dispatch_impl": "::dispatch_kernel_on_gpu",
    "dispatch_copy_epilogue_impl": "::expand_rows_kernel_on_gpu",
    "combine_impl": "::combine_kernel_on_gpu",
    "combine_reduce_epilogue_impl": "::reduce_rows_kernel_on_gpu",
}
"""By the names of DeepEP's kernels: what does their work here."""


def flush_l2_cache(enabled: bool = True) -> None:
    """Writes over whatever the cache holds."""
    if enabled:
        torch.empty(CACHE_BYTES // 4, dtype=torch.int, device="cuda").zero_()


def bench(
    fn: Callable[[], Any],
    num_warmups: int = 50,
    num_tests: int = 50,
    post_fn: Callable[[], Any] | None = None,
    flush_l2: bool = True,
) -> tuple[float, float, float]:
    """Average, shortest and longest time of a call in seconds, the first of them left out."""
    for _ in range(num_warmups):
        fn()
    marks = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(num_tests)
    ]
    for begin, end in marks:
        flush_l2_cache(flush_l2)
        begin.record()
        fn()
        end.record()
        if post_fn is not None:
            post_fn()
    torch.cuda.synchronize()
    times = [begin.elapsed_time(end) / 1e3 for begin, end in marks][1:]
    return sum(times) / len(times), min(times), max(times)


@contextlib.contextmanager
def silence(enabled: bool) -> Iterator[None]:
    """What the process writes meanwhile, its libraries too, goes nowhere."""
    if not enabled:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(number, os.dup(number)) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for number, _ in kept:
            os.dup2(nowhere, number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)
        os.close(nowhere)


def bench_kineto(
    fn: Callable[[], Any],
    kernel_names: str | tuple[str, ...],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: str | None = None,
    flush_l2: bool = True,
    barrier_comm_profiling: bool = False,
    num_kernels_per_period: int = 1,
    barrier: Callable[[], Any] | None = None,
) -> Any:
    """Average time in seconds of the kernels whose names contain each of `kernel_names`; not a
    number, if none did. Names of DeepEP's own kernels stand for those that do their work here.

    With `num_kernels_per_period`, a list for each name: of its first kernel in every call, its
    second and so on.
    """
    names = (kernel_names,) if isinstance(kernel_names, str) else kernel_names
    fn()
    torch.cuda.synchronize()
    one = torch.ones(1, dtype=torch.float, device="cuda")
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with silence(suppress_kineto_output), torch.profiler.profile(activities=activities) as profile:
        for _ in range(num_tests):
            flush_l2_cache(flush_l2)
            if barrier_comm_profiling:
                torch.cuda._sleep(SPIN_CYCLES)
                dist.all_reduce(one) if barrier is None else barrier()
            fn()
        torch.cuda.synchronize()
    if trace_path is not None:
        profile.export_chrome_trace(trace_path)
    found = [_durations(profile, name, num_kernels_per_period) for name in names]
    times = [each if num_kernels_per_period > 1 else each[0] for each in found]
    return times[0] if isinstance(kernel_names, str) else times


def _durations(profile: Any, name: str, period: int) -> list[float]:
    """Averages over the calls: of the first kernel of that name in each, the second, ..."""
    name = INSTEAD.get(name, name)
    kernels = sorted(
        (event.time_range.start, event.time_range.elapsed_us() / 1e6)
        for event in profile.events()
        if name in event.name and event.device_type == torch.autograd.DeviceType.CUDA
    )
    times = [seconds for _, seconds in kernels]
    if len(times) % period != 0:
        raise RuntimeError(f"{len(times)} kernels are called {name}; they come {period} at a time")
    if not times:
        return [math.nan] * period
    return [sum(times[which::period]) * period / len(times) for which in range(period)]
