"""What a process holds of the system: memory, mappings, descriptors, threads."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MEMORY_SLACK_KB = 4096
"""What allocators and interpreters keep as they like. A thousand things that kept 5 KB each, or one
page of a mapping, would be more."""


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
        """By more than a few mappings, which an allocator splits and joins, and two threads, which
        begin when they are first needed."""
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
    """Calls `once(number)` so often; asserts that the process holds afterwards what it held after
    the first tenth. `settle` lets what was closed last come to its end."""
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
