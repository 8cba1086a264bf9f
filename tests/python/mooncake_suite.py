"""Mooncake's own tests of its process groups, run unmodified on compat/mooncake.

    python tests/python/mooncake_suite.py [--checkout FOLDER] [--only REGEX] [--out FILE]

Fetches them from GitHub into a temporary folder, at the commit below, or takes them from a checkout
of Mooncake; nothing of them is kept. Prints which tests pass, are skipped or fail and why. Tests of
backend mooncake need GPUs and are listed as not run. The exit status is the number of failures;
NOT_FETCHED means that there was nothing to run.
"""

# ruff: noqa: N802  The names of unittest's methods.
from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

REPOSITORY = "https://github.com/kvcache-ai/Mooncake"
COMMIT = "3b5a594133958449a1feaf1c9e0fc1b553e34a28"
TESTS = "mooncake-pg/tests"
PACKAGE = Path(__file__).parents[2] / "compat" / "mooncake"
NOT_FETCHED = 77
SLOWEST_START_S = 120.0
"""Time for a test's processes, in seconds; Mooncake's 30 s are short for 8 imports of torch."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkout", type=Path, metavar="FOLDER", help="instead of fetching")
    parser.add_argument("--only", default="", metavar="REGEX", help="tests whose name matches")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the list, as text")
    return parser.parse_args()


def fetch(folder: Path) -> None:
    """Fetches the folder of tests; exits with NOT_FETCHED if that is not possible."""
    git = ["git", "-C", str(folder), "-c", "advice.detachedHead=false"]
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    for command in (
        ["init", "--quiet"],
        ["sparse-checkout", "set", TESTS],
        ["fetch", "--quiet", "--depth=1", "--filter=blob:none", REPOSITORY, COMMIT],
        ["remote", "add", "origin", REPOSITORY],
        ["config", "remote.origin.promisor", "true"],
        ["checkout", "--quiet", COMMIT],
    ):
        try:
            subprocess.run([*git, *command], check=True, timeout=120, env=environment)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"cannot fetch Mooncake's tests: {error}")
            sys.exit(NOT_FETCHED)


class Report(unittest.TestResult):
    """Prints each test's outcome as soon as it is known."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.failed = 0
        self._begin = 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._begin = time.monotonic()

    def _say(self, test: Any, outcome: str) -> None:
        self.lines.append(f"{test.id() if hasattr(test, 'id') else test}: {outcome}")
        print(f"{self.lines[-1]} ({time.monotonic() - self._begin:.1f} s)", flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._say(test, "pass")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self._say(test, f"skipped: {reason.splitlines()[0]}")

    def addFailure(self, test: unittest.TestCase, error: Any) -> None:
        super().addFailure(test, error)
        self._fail(test, error)

    def addError(self, test: unittest.TestCase, error: Any) -> None:
        super().addError(test, error)
        self._fail(test, error)

    def _fail(self, test: Any, error: Any) -> None:
        self.failed += 1
        self._say(test, f"FAILED: {error[1]}")


def cases(suite: unittest.TestSuite) -> list[unittest.TestCase]:
    found: list[unittest.TestCase] = []
    for one in suite:
        found += cases(one) if isinstance(one, unittest.TestSuite) else [one]
    return found


def run(folder: Path, only: str) -> Report:
    """Runs the tests in `folder`, in this process and its children."""
    paths = [str(folder), str(PACKAGE)]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *sys.path])  # For the tests' children.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from mooncake import pg  # noqa: F401  Compiled once, before the children need it.

    sys.modules["pg_test_utils"] = utilities = __import__("pg_test_utils")
    utilities.MultiProcessTestCase.spawn_timeout_s = SLOWEST_START_S
    report = Report()
    chosen = unittest.TestSuite()
    for test in cases(unittest.TestLoader().discover(str(folder), "test_pg_*.py")):
        if not re.search(only, test.id()):
            continue
        if re.search(r"(CUDA|MUSA)\.", test.id()):
            report.addSkip(test, "not run: backend mooncake needs GPUs")
        else:
            chosen.addTest(test)
    chosen.run(report)
    return report


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="mooncake-tests-") as folder:
        root = options.checkout or Path(folder)
        if options.checkout is None:
            fetch(root)
        report = run(root / TESTS, options.only)
    if options.out:
        options.out.write_text("\n".join(report.lines) + "\n")
    ran = report.testsRun - report.failed
    print(f"{ran} of {report.testsRun} tests passed or skipped themselves")
    sys.exit(min(report.failed, NOT_FETCHED - 1))


if __name__ == "__main__":
    main()
