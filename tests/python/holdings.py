"""Resources that a process holds: memory, mappings, descriptors, threads."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MEMORY_SLACK_KB = 4096
"""Slack for allocators and interpreters. A thousand leaks of 5 KB, or of one page each, exceed
it."""


@dataclass
class Holdings:
    resident_kb: int
    mappings: int
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> Holdings:
        gc.collect()
        status = dict(
            line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
        )
        return cls(
            resident_kb=int(status["VmRSS"].split()[0]),
            mappings=len(Path("/proc/self/maps").read_text().splitlines()),
            descriptors=sum(1 for _ in Path("/proc/self/fd").iterdir()),
            threads=int(status["Threads"]),
        )

    def exceeds(self, before: Holdings, slack_kb: int = MEMORY_SLACK_KB) -> bool:
        """Returns whether it exceeds `other` by more than noise.

        Allocators split and join mappings, and two threads start when they are first needed.
        """
        return (
            self.resident_kb > before.resident_kb + slack_kb
            or self.mappings > before.mappings + 30
            or self.descriptors > before.descriptors
            or self.threads > before.threads + 2
        )


def cycle(
    once: Callable[[int], object],
    cycles: int,
    settle: Callable[[], object],
    slack_kb: int = MEMORY_SLACK_KB,
) -> None:
    """Calls `once(number)` repeatedly; asserts that resources do not grow after the first tenth.

    `settle` waits for the end of what was closed last.
    """
    for number in range(cycles // 10):
        once(number)
    settle()
    before = Holdings.now()
    for number in range(cycles // 10, cycles):
        once(number)
    deadline = time.monotonic() + 30
    while True:
        settle()
        after = Holdings.now()
        if not after.exceeds(before, slack_kb):
            return
        assert time.monotonic() < deadline, f"{before} before, {after} after {cycles} cycles"
        time.sleep(0.05)
