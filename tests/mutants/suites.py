"""The tests and simulator seeds that mutants are run against, and which mutants each reaches.

A run that records maps the table of mutants onto a file: the place of a mutant that is reached
writes a byte there, whichever process of the test it is in. A mutant can only change a test that
reaches its place, so the others need not run.
"""

import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import IO

from packing import pack, unpack
from parts import BUILD, HERE, ROOT
from tree import OBJECTS, TREE, Tree, interpreter, note

# Targets to build for a part. Whichever tests of them reach a mutant are run.
PROGRAMS = {
    "net": ["net_test", "control_test", "fabric_test"],
    "membership": ["membership_test", "control_test", "collectives_test", "simulate"],
    "control": ["control_test", "job_test", "simulate"],
    "fabric": ["fabric_test", "world_test", "expert_parallel_test", "simulate"],
    "collectives": ["collectives_test", "simulate"],
    "expert_parallel": ["expert_parallel_test", "simulate"],
    "megakernel": ["megakernel_test", "decoder_test", "simulate"],
    "bindings": ["_tokenyard"],
    "python": ["_tokenyard"],
}
# Simulator suites that reach a part; each begins with these words.
SUITES = {
    "membership": ("collectives", "recovery", "job"),
    "control": ("recovery", "job"),
    "fabric": ("fabric", "network", "ibgda", "gin", "internode", "leaving"),
    "collectives": ("collectives", "engine", "recovery", "device_"),
    "expert_parallel": ("throughput", "readiness", "leaving", "internode", "low_latency"),
    "megakernel": ("megakernel", "decoder"),
}
SEEDS_RECORDED = 6  # Per suite, or as many as fit into SECONDS_RECORDED.
SECONDS_RECORDED = 12.0
LIMIT = 300.0  # Seconds after which a recording has failed.
REACHED = BUILD / "reached"
CACHE = BUILD / "cache"  # Of what the package builds for torch.


@dataclasses.dataclass(frozen=True)
class Test:
    """A test that can run alone. `of` is its program, suite or file."""

    __test__ = False  # None of pytest's.

    kind: str  # gtest, simulate or pytest
    of: str
    name: str
    seconds: float = 0

    @property
    def title(self) -> str:
        """Returns what a reader calls it."""
        return (
            f"{self.of} {self.name}"
            if self.kind != "simulate"
            else f"simulate {self.of} seed {self.name}"
        )


# ---- running ------------------------------------------------------------------------------------

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Makes processes whose parent has died children of this one, so that none stays behind.

    SIGTERM ends this process as an interrupt does: a test that runs is ended first.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_children() -> None:
    """Ends what a test has left running: it is this process's child, for it adopts orphans."""
    for _ in range(100):
        tasks = pathlib.Path("/proc/self/task").glob("*/children")
        left = [int(word) for task in tasks for word in task.read_text().split()]
        if not left:
            return
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
            except (ProcessLookupError, ChildProcessError):
                continue


@dataclasses.dataclass
class Run:
    """How a command ended: `code` is None where it was out of time."""

    code: int | None
    seconds: float
    output: str


def _wait(
    process: subprocess.Popen[bytes], output: IO[bytes], until: float, stop_at: str
) -> int | None:
    """Returns how the process ended, 1 where it wrote `stop_at`, or None where time is over."""
    pause = 0.002
    while time.monotonic() < until:
        code = process.poll()
        if code is not None:
            return code
        # pread leaves alone the place where the process writes: they share it.
        if stop_at and stop_at.encode() in os.pread(output.fileno(), 1 << 20, 0):
            return 1
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    return None


def run(command: list[str], timeout: float, environment: dict[str, str], stop_at: str = "") -> Run:
    """Runs a command in the tree. Ends it, and all that it has started, in time.

    Also ends it as failed as soon as it writes `stop_at`.
    """
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=TREE, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            process_group=0,  # No session of its own, which would have a priority of its own.
        )  # fmt: skip
        try:
            code = _wait(process, output, started + timeout, stop_at)
        finally:  # Also when this process is told to end.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _end_children()
        seconds = time.monotonic() - started
        output.seek(0)
        return Run(code, seconds, output.read().decode(errors="replace"))


def module() -> pathlib.Path:
    """Returns the folder of the Python module: the tree's, or one that was built before."""
    return pathlib.Path(os.environ.get("TOKENYARD_MUTANTS_MODULE", OBJECTS / "python" / "bindings"))


def environment_of_python() -> dict[str, str]:
    """Returns the variables with which Python finds the package of the tree."""
    paths = [TREE / "python", module()]
    return {
        "PYTHONPATH": ":".join(map(str, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "XDG_CACHE_HOME": str(CACHE),
    }


def fresh_cache() -> dict[str, str]:
    """Returns the variable of a cache for one mutant: what that builds, no other process loads."""
    shutil.rmtree(BUILD / "cache_of_one", ignore_errors=True)
    if CACHE.exists():
        shutil.copytree(CACHE, BUILD / "cache_of_one")
    return {"XDG_CACHE_HOME": str(BUILD / "cache_of_one")}


def pytest(*arguments: str) -> list[str]:
    """Returns pytest's command. Its plugin lies beside this file."""
    words = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--tb=line"]
    return [interpreter(), "-m", "pytest", *words, *arguments]


def gtest(program: str, names: Iterable[str]) -> list[str]:
    """Returns the command of some tests of a program, which ends with the first that fails."""
    return [
        str(OBJECTS / "tests" / program),
        f"--gtest_filter={':'.join(names)}",
        "--gtest_fail_fast",
    ]


def simulate(suite: str, first: int, seeds: int, limit: float) -> list[str]:
    """Returns the command of some seeds of a suite."""
    words = ["--suite", suite, "--first", str(first), "--seeds", str(seeds), "--jobs", "1"]
    return [str(OBJECTS / "tests" / "simulate"), *words, "--limit", str(max(1, int(limit)))]


# ---- what there is ------------------------------------------------------------------------------


def _gtests(program: str) -> Iterator[Test]:
    listing = run([str(OBJECTS / "tests" / program), "--gtest_list_tests"], 60, {})
    suite = ""
    for line in listing.output.splitlines():
        if line.startswith("  "):
            name = line.split("#")[0].strip()
            if not (suite + name).startswith("DISABLED_") and ".DISABLED_" not in suite + name:
                yield Test("gtest", program, suite + name)
        elif re.match(r"[\w/]+\.(\s|$)", line):
            suite = line.split("#")[0].strip()


def suites(parts: Iterable[str]) -> list[str]:
    """Returns the simulator suites that CI runs and that reach a part."""
    text = (ROOT / "tests/CMakeLists.txt").read_text()
    match = re.search(r"set\(TOKENYARD_SUITES ([^)]*)\)", text)
    words = tuple(word for part in parts for word in SUITES.get(part, ()))
    return [suite for suite in (match[1].split() if match else []) if suite.startswith(words)]


def _alone_patterns() -> list[re.Pattern[str]]:
    text = (ROOT / "tests/CMakeLists.txt").read_text()
    match = re.search(r'set\(TOKENYARD_ALONE "([^"]*)"\)', text)
    words = match[1].split(":") if match else []
    return [re.compile(re.escape(word).replace(r"\*", ".*") + "$") for word in words]


def is_of_real_time(test: Test) -> bool:
    """Returns whether a test's deadlines pass in real time, so that a busy machine can fail it."""
    if test.kind == "pytest":
        return True
    return test.kind == "gtest" and any(pattern.match(test.name) for pattern in _alone_patterns())


# ---- recording ----------------------------------------------------------------------------------


@dataclasses.dataclass
class Record:
    """The run of a test without a mutant."""

    test: Test
    passed: bool
    reached: frozenset[int]


class Recorder:
    """Runs tests without a mutant, once, and keeps what they reached."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._states = BUILD / "states.bin"
        REACHED.mkdir(parents=True, exist_ok=True)

    def _clean(self) -> None:
        self._states.write_bytes(b"\1" * self._tree.bytes)

    def _of(self, group: str, stamp: str, make) -> list[Record]:
        """Returns the records of a program, suite or file: kept ones where nothing has changed."""
        path = REACHED / f"{re.sub(r'[^A-Za-z0-9_]', '_', group)}.json"
        if path.exists():
            kept = json.loads(path.read_text())
            if kept["stamp"] == stamp:
                return [Record(Test(*row[:4]), row[4], unpack(row[5])) for row in kept["rows"]]
        rows = [[*dataclasses.astuple(test), passed, reached] for test, passed, reached in make()]
        path.write_text(json.dumps({"stamp": stamp, "rows": rows}, indent=0))
        failed = sum(not row[4] for row in rows)
        note(
            f"recorded {group}: {len(rows)} tests"
            + (f", {failed} fail or skip without a mutant" if failed else "")
        )
        return [Record(Test(*row[:4]), row[4], unpack(row[5])) for row in rows]

    def _stamp(self, *files: pathlib.Path) -> str:
        times = [f"{file.stat().st_mtime_ns}" for file in files]
        return " ".join([self._tree.stamp, *times])

    def gtests(self, program: str) -> list[Record]:
        """Runs each test of a program."""
        path = OBJECTS / "tests" / program
        if not path.exists():
            return []

        def make() -> Iterator[tuple[Test, bool, str]]:
            for test in list(_gtests(program)):
                self._clean()
                environment = {
                    "TOKENYARD_MUTANTS_REACHED": str(self._states),
                    **environment_of_python(),
                }
                done = run(gtest(program, [test.name]), LIMIT, environment)
                passed = done.code == 0 and "[  SKIPPED ]" not in done.output
                yield (
                    dataclasses.replace(test, seconds=round(done.seconds, 3)),
                    passed,
                    pack(self._states.read_bytes()),
                )

        return self._of(program, self._stamp(path), make)

    def seeds(self, suite: str) -> list[Record]:
        """Runs the first seeds of a suite."""
        path = OBJECTS / "tests" / "simulate"
        if not path.exists():
            return []

        def make() -> Iterator[tuple[Test, bool, str]]:
            left = SECONDS_RECORDED
            for seed in range(1, SEEDS_RECORDED + 1):
                self._clean()
                done = run(
                    simulate(suite, seed, 1, LIMIT),
                    LIMIT,
                    {"TOKENYARD_MUTANTS_REACHED": str(self._states)},
                )
                test = Test("simulate", suite, str(seed), round(done.seconds, 3))
                yield test, done.code == 0, pack(self._states.read_bytes())
                left -= done.seconds
                if left < 0:
                    break

        return self._of(f"simulate {suite}", self._stamp(path), make)

    def script(self, script: str) -> list[Record]:
        """Runs the tests of a Python file: a plugin takes the table after each."""
        built = next(module().glob("_tokenyard*.so"), None)
        if built is None:
            return []

        def make() -> Iterator[tuple[Test, bool, str]]:
            self._clean()
            with tempfile.TemporaryDirectory() as folder:
                rows = pathlib.Path(folder) / "rows"
                environment = {
                    **environment_of_python(),
                    "TOKENYARD_MUTANTS_REACHED": str(self._states),
                    "TOKENYARD_MUTANTS_ROWS": str(rows),
                }
                environment["PYTHONPATH"] += f":{HERE}"
                command = [word for word in pytest(script, "-p", "pytest_reached") if word != "-x"]
                run(command, 600, environment)
                text = rows.read_text() if rows.exists() else ""
            for line in text.splitlines():
                name, seconds, passed, reached = json.loads(line)
                yield Test("pytest", script, name, seconds), passed, reached

        changed = [TREE / script, built, *sorted((TREE / "python").rglob("*.py"))]
        newest = max(changed, key=lambda path: path.stat().st_mtime_ns)
        return self._of(script, self._stamp(built, newest, TREE / script), make)


def scripts() -> list[str]:
    """Returns the files of Python tests."""
    folders = ("tests/python", "tests/faults")
    found = [path for folder in folders for path in (TREE / folder).glob("test_*.py")]
    return sorted(str(path.relative_to(TREE)) for path in found)


def words(path: str) -> set[str]:
    """Returns the words of a file's name: a test of that name is about the file."""
    return set(re.findall(r"[a-z]+", pathlib.Path(path).stem)) - {"test", "init"}


def record_all(
    tree: Tree, programs: Iterable[str], parts: Iterable[str], python: bool,
    only: list[str] | None = None,
) -> list[Record]:  # fmt: skip
    """Returns the records of everything that is built and reaches a part.

    Of the tests in Python, perhaps of `only` some files.
    """
    recorder = Recorder(tree)
    groups = _groups(recorder, programs, parts, python)
    groups = [
        make for make in groups
        if only is None or make.func != recorder.script or pathlib.Path(make.args[0]).stem in only
    ]  # fmt: skip
    return [record for make in groups for record in make()]


def record_some(
    tree: Tree, programs: Iterable[str], parts: Iterable[str], python: bool, seed: str,
    seconds: float,
) -> list[Record]:  # fmt: skip
    """Returns the records of test programs, and of suites and files in an order that `seed` draws.

    Those for which there is no time are left out.
    """
    recorder = Recorder(tree)
    groups = _groups(recorder, programs, parts, python)
    about = {word for file in tree.chosen for word in words(file)}
    groups.sort(key=lambda make: hashlib.sha1(f"{seed} {make.args}".encode()).digest())
    groups.sort(key=lambda make: (make.func != recorder.gtests, not about & words(make.args[0])))
    ends = time.monotonic() + seconds
    found: list[Record] = []
    for make in groups:
        if time.monotonic() < ends:
            found += make()
    return found


def _groups(
    recorder: Recorder, programs: Iterable[str], parts: Iterable[str], python: bool
) -> list[functools.partial[list[Record]]]:
    groups = []
    for program in programs:
        if program == "simulate":
            groups += [functools.partial(recorder.seeds, suite) for suite in suites(parts)]
        elif program.endswith("_test"):
            groups.append(functools.partial(recorder.gtests, program))
    if python:
        groups += [functools.partial(recorder.script, script) for script in scripts()]
    return groups
