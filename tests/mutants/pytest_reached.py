"""A plugin of pytest: notes after each test which mutants' places it has reached."""

import json
import mmap
import os
import pathlib

import pytest
from packing import pack

_states_in = pathlib.Path(os.environ["TOKENYARD_MUTANTS_REACHED"])
_rows_in = pathlib.Path(os.environ["TOKENYARD_MUTANTS_ROWS"])


def _table() -> mmap.mmap:
    with _states_in.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Lets a test begin with a clean table."""
    item.reached_outcome = []
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Keeps how each phase of a test ended; after the last one, writes the row."""
    report = yield
    item.reached_outcome.append((report.passed, report.duration))
    if report.when == "teardown":
        states = _table()
        passed = len(item.reached_outcome) == 3 and all(fine for fine, _ in item.reached_outcome)
        seconds = round(sum(took for _, took in item.reached_outcome), 3)
        name = item.nodeid.split("::", 1)[1]
        with _rows_in.open("a") as rows:
            rows.write(json.dumps([name, seconds, passed, pack(bytes(states))]) + "\n")
        states[:] = b"\1" * len(states)
    return report
