"""Timers of DeepEP's tests. They need a GPU."""

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
"""Larger than a GPU's L2 cache."""
SPIN_CYCLES = 20_000_000
"""Cycles for which a GPU is kept busy, so that all ranks' calls are enqueued before any runs."""
INSTEAD = {
    "dispatch_impl": "::dispatch_kernel_on_gpu",
    "dispatch_copy_epilogue_impl": "::expand_rows_kernel_on_gpu",
    "combine_impl": "::combine_kernel_on_gpu",
    "combine_reduce_epilogue_impl": "::reduce_rows_kernel_on_gpu",
}
"""Kernels that do the work of DeepEP's here, by the names of DeepEP's."""


def flush_l2_cache(enabled: bool = True) -> None:
    """Overwrites the contents of the L2 cache."""
    if enabled:
        torch.empty(CACHE_BYTES // 4, dtype=torch.int, device="cuda").zero_()


def bench(
    fn: Callable[[], Any],
    num_warmups: int = 50,
    num_tests: int = 50,
    post_fn: Callable[[], Any] | None = None,
    flush_l2: bool = True,
) -> tuple[float, float, float]:
    """Returns average, shortest and longest time of a call in seconds, without the first one."""
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
    """Discards the output of the process and its libraries during a block."""
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
    """Returns, for each of `kernel_names`, the average time in seconds of kernels so named.

    A name matches as a part; NaN if no kernel matches. Names of DeepEP's kernels stand for those
    that do their work here. With `num_kernels_per_period` above 1, returns a list per name: times
    of the first matching kernel of every call, of the second, and so on.
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
    """Returns averages over the calls of the first kernel of that name, of the second, ..."""
    name = INSTEAD.get(name, name)
    kernels = sorted(
        (event.time_range.start, event.time_range.elapsed_us() / 1e6)
        for event in profile.events()
        if name in event.name and event.device_type == torch.autograd.DeviceType.CUDA
    )
    times = [seconds for _, seconds in kernels]
    if len(times) % period != 0:
        raise RuntimeError(f"{len(times)} kernels match {name}, not a multiple of {period}")
    if not times:
        return [math.nan] * period
    return [sum(times[which::period]) * period / len(times) for which in range(period)]
