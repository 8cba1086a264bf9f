"""torch's own tests of backend gloo, pointed at backend tokenyard.

    python tests/python/torch_suite.py [--ranks 4] [--only REGEX] [--backend gloo] [--out FILE]

The tests are torch.testing's DistributedTest, which torch runs for each of its backends. They name
gloo, so here gloo stands for tokenyard, which also supports all_to_all of CPU tensors, for torch an
MPI feature; --backend gloo runs them unchanged, for comparison. Prints which tests pass, are
skipped, or fail and why; the exit status is the number of failures that `EXPECTED` does not
explain. Tests of groups that are neither all nor few ranks need 8 ranks.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXPECTED = {
    **dict.fromkeys(
        tuple(f"test_barrier_timeout_{kind}" for kind in ("group", "full_group", "global")),
        "the error says which rank did not answer in which phase, not 'Timed out'",
    ),
    "test_ddp_logging_data_cpu": "DDP logs a backend from outside torch as 'custom'",
    **dict.fromkeys(
        tuple(
            f"test_monitored_barrier_{kind}"
            for kind in ("gloo", "gloo_subgroup", "failure_order", "wait_all_ranks")
        ),
        "raises PeerTimeout, a TimeoutError, on every rank that came, and names who did not",
    ),
    "test_sparse_all_reduce_sum": "sparse tensors are refused",
}
"""Tests of features in which this backend differs, with the difference."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="processes (4)")
    parser.add_argument("--only", default="", metavar="REGEX", help="tests whose name matches")
    parser.add_argument("--backend", choices=("tokenyard", "gloo"), default="tokenyard")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the list, as text")
    return parser.parse_args()


def gloo_is_tokenyard() -> None:
    """Makes groups of gloo groups of tokenyard, under gloo's name."""
    import torch.distributed.distributed_c10d as c10d

    import tokenyard.torch  # noqa: F401  Registers the backend.

    genuine: Callable[..., Any] = c10d._new_process_group_helper

    def helper(size: int, rank: int, ranks: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
        ours = str(backend) in ("gloo", "undefined", "cpu:gloo,cuda:nccl")
        made = genuine(size, rank, ranks, "tokenyard" if ours else backend, *args, **kwargs)
        group, store = made
        if ours and group in c10d._world.pg_map:
            c10d._world.pg_map[group] = ("gloo", store)
        return made

    c10d._new_process_group_helper = helper
    # Conditions are evaluated when the tests are imported.
    from torch.testing._internal import common_utils

    skip_if = common_utils.skip_but_pass_in_sandcastle_if
    common_utils.skip_but_pass_in_sandcastle_if = lambda condition, reason: skip_if(
        condition and not reason.startswith("Only MPI supports"), reason
    )


def rename_events(title: str, expected: str) -> None:
    """Makes the profiler's "tokenyard:send" "gloo:send", if `expected` is gloo."""
    from torch.testing._internal.distributed import distributed_test

    event_of = distributed_test.get_profiling_event

    def events_of(name: str, *rest: Any, **options: Any) -> list[Any]:
        events = event_of(name.replace(f"{expected}:", f"{title}:"), *rest, **options)
        for event in events:
            event.name = event.name.replace(f"{title}:", f"{expected}:")
        return events

    distributed_test.get_profiling_event = events_of


def tests(only: str, title: str) -> unittest.TestSuite:
    from torch.testing._internal.distributed import distributed_test

    class Gloo(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            # torch is imported once, not once a rank and test.
            self._start_processes(multiprocessing.get_context("fork").Process)

    rename_events(title, "gloo")
    names = unittest.defaultTestLoader.getTestCaseNames(Gloo)
    return unittest.TestSuite(Gloo(name) for name in names if re.search(only, name))


class Listing(unittest.TestResult):
    """Prints every test's outcome, with the line of the reason."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, tuple[str, str]] = {}
        self._begin = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        self._begin = time.monotonic()

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._note(test, "passed", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._note(test, "skipped", reason.splitlines()[0])

    def addFailure(self, test: unittest.TestCase, error: Any) -> None:  # noqa: N802
        super().addFailure(test, error)
        said = [line for line in str(error[1]).splitlines() if "Error" in line]
        self._note(test, "failed", said[-1] if said else str(error[1]).splitlines()[0])

    addError = addFailure  # noqa: N815

    def _note(self, test: unittest.TestCase, outcome: str, why: str) -> None:
        name = test.id().rpartition(".")[2]
        if outcome == "failed" and name in EXPECTED:
            outcome, why = "differs", EXPECTED[name]
        self.lines[name] = (outcome, why)
        seconds = time.monotonic() - self._begin
        print(f"{outcome:8} {name} ({seconds:.1f} s) {why}", flush=True)


def main() -> int:
    chosen = parse()
    # distributed_test reads these when it is imported.
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(chosen.ranks), INIT_METHOD="env://")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TEMP_DIR"] = folder
        for name in ("barrier", "test_dir", "init_dir"):
            (Path(folder) / name).mkdir()
        if chosen.backend == "tokenyard":
            gloo_is_tokenyard()
        listing = Listing()
        tests(chosen.only, chosen.backend).run(listing)
    counts = {
        kind: sum(outcome == kind for outcome, _ in listing.lines.values())
        for kind in ("passed", "skipped", "differs", "failed")
    }
    total = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(total)
    if chosen.out is not None:
        lines = [f"{outcome:8} {name}  {why}" for name, (outcome, why) in listing.lines.items()]
        chosen.out.write_text("\n".join([total, "", *sorted(lines)]) + "\n")
    return counts["failed"]


if __name__ == "__main__":
    sys.exit(main())
