"""Draws mutants, runs each until something catches it, and keeps a ledger of the results."""

import collections
import dataclasses
import fcntl
import hashlib
import itertools
import json
import os
import pathlib
import re
import time
from collections.abc import Iterable, Iterator

import suites
from parts import HERE, PARTS, ROOT, part_of
from schemata import OPERATORS, Mutant, line_hash
from suites import Record, Run, Test

SEED = "tokenyard 1"  # Of the draw.
TOTAL = 1000
LEDGER = HERE / "ledger.tsv"
EQUIVALENT = HERE / "equivalent.txt"
COLUMNS = ("mutant", "outcome", "by", "seeds", "seconds", "commit")
BATCH = 2.0  # Seconds of tests that share a process.
GRACE = 5.0  # Seconds beyond ten times what a test takes.


# ---- drawing ------------------------------------------------------------------------------------


def rank(seed: str, name: str) -> bytes:
    """Returns a mutant's place in a draw: by its name alone, so that others do not move it."""
    return hashlib.sha1(f"{seed} {name}".encode()).digest()


def order(mutants: Iterable[Mutant], seed: str) -> list[Mutant]:
    """Returns mutants in the order in which a draw takes them, the operators in turn."""
    by_operator: dict[str, list[Mutant]] = {operator: [] for operator in OPERATORS}
    for mutant in sorted(mutants, key=lambda m: rank(seed, m.name)):
        by_operator[mutant.operator].append(mutant)
    found = []
    queues = [collections.deque(those) for those in by_operator.values()]
    while any(queues):
        found += [queue.popleft() for queue in queues if queue]
    return found


def draw(
    mutants: Iterable[Mutant], seed: str = SEED, total: int = TOTAL
) -> dict[str, list[Mutant]]:
    """Returns the drawn mutants of each part, as many of each as can be."""
    by_part: dict[str, list[Mutant]] = {part: [] for part in PARTS}
    for mutant in mutants:
        by_part[str(part_of(mutant.file))].append(mutant)
    each, more = divmod(total, len(PARTS))
    return {
        part: order(those, seed)[: each + (number < more)]
        for number, (part, those) in enumerate(by_part.items())
    }


FILES_OF_SAMPLE = 4
MUTANTS_OF_FILE = 5


def sample(mutants: Iterable[Mutant], seed: str) -> list[Mutant]:
    """Returns mutants of a few files that the seed chooses, so that little has to be built."""
    by_file: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_file.setdefault(mutant.file, []).append(mutant)
    files = sorted(by_file, key=lambda file: rank(seed, file))[:FILES_OF_SAMPLE]
    queues = [order(by_file[file], seed)[:MUTANTS_OF_FILE] for file in files]
    return [m for those in itertools.zip_longest(*queues) for m in those if m is not None]


# ---- what is known ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Row:
    """A mutant's result. `outcome` is caught, survived, unreached or does not compile."""

    mutant: str
    outcome: str
    by: str = ""  # The test that caught it; of a survivor, the tests that were run.
    seeds: int = 0  # Simulator seeds until it was caught, or all that were run.
    seconds: float = 0
    commit: str = ""


class Ledger:
    """Rows in a file, one a mutant. A sweep adds rows, and goes on where it was ended."""

    def __init__(self, path: pathlib.Path = LEDGER) -> None:
        self._path = path
        self.rows: dict[str, Row] = self._read()

    def _read(self) -> dict[str, Row]:
        rows = {}
        if self._path.exists():
            for line in self._path.read_text().splitlines()[1:]:
                name, outcome, by, seeds, seconds, commit = line.split("\t")
                rows[name] = Row(name, outcome, by, int(seeds), float(seconds), commit)
        return rows

    def add(self, row: Row) -> None:
        """Adds a row to the file: a sweep may end at any time, and others may add to it."""
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # Another sweep may add a row now.
            self.rows = {**self.rows, **self._read(), row.mutant: row}
            self.write()
        finally:
            os.close(folder)

    def write(self) -> None:
        """Writes the file, sorted, so that two sweeps' rows merge."""
        lines = ["\t".join(COLUMNS)]
        for row in sorted(self.rows.values(), key=lambda row: row.mutant):
            lines.append("\t".join(map(str, dataclasses.astuple(row))))
        written = self._path.with_suffix(".part")
        written.write_text("\n".join(lines) + "\n")
        written.replace(self._path)

    def forget_gone(self, names: set[str]) -> int:
        """Drops rows of mutants that are no more: their lines have changed."""
        gone = [name for name in self.rows if name not in names]
        for name in gone:
            del self.rows[name]
        return len(gone)


def equivalents(path: pathlib.Path = EQUIVALENT) -> dict[str, str]:
    """Returns the sentence for each mutant that is explained as equivalent."""
    found = {}
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, sentence = line.partition(": ")
        if not re.fullmatch(r"\S+ \w+ [0-9a-f]{8}\.\d+", name) or not sentence.endswith("."):
            raise SystemExit(f"{path.name}:{number}: not FILE OPERATOR HASH.NUMBER: SENTENCE.")
        found[name] = sentence
    return found


def has_line(name: str, root: pathlib.Path = ROOT) -> bool:
    """Returns whether the file of a mutant's name still has its line. Needs no parser."""
    file, _, rest = name.split(" ")
    path = root / file
    if not path.exists():
        return False
    wanted = rest.split(".")[0]
    return any(line_hash(line) == wanted for line in path.read_text().splitlines())


# ---- one mutant ---------------------------------------------------------------------------------


@dataclasses.dataclass
class Step:
    """Some tests that run as one command."""

    tests: list[Test]
    seeds: int = 0
    open_ended: bool = False  # A simulator's sweep, for what is left of the time.

    @property
    def seconds(self) -> float:
        """Returns how long they take without a mutant."""
        return sum(test.seconds for test in self.tests)


def _batches(tests: list[Test]) -> Iterator[Step]:
    batch: list[Test] = []
    for test in sorted(tests, key=lambda test: test.seconds):
        if batch and sum(t.seconds for t in batch) + test.seconds > BATCH:
            yield Step(batch)
            batch = []
        batch.append(test)
    if batch:
        yield Step(batch)


def plan(mutant: Mutant, reaching: list[Test]) -> list[Step]:
    """Returns what to run, in order: near and cheap tests first, then seeds that are new."""
    part = part_of(mutant.file)
    near: dict[str, list[Test]] = {}
    far: dict[str, list[Test]] = {}
    seeds: dict[str, list[Test]] = {}
    files: dict[str, list[Test]] = {}
    for test in reaching:
        if test.kind == "gtest":
            into = near if test.of == f"{part}_test" else far
            key = f"{test.of}{' alone' if suites.is_of_real_time(test) else ''}"
            into.setdefault(key, []).append(test)
        elif test.kind == "simulate":
            seeds.setdefault(test.of, []).append(test)
        else:
            files.setdefault(test.of, []).append(test)
    steps = [step for tests in near.values() for step in _batches(tests)]
    recorded = [
        Step([test], seeds=1)
        for tests in seeds.values()
        for test in sorted(tests, key=lambda test: test.seconds)[:3]
    ]
    elsewhere = [step for tests in far.values() for step in _batches(tests)]
    python = [Step(tests) for tests in files.values()]
    steps += sorted(recorded, key=lambda step: step.seconds)
    steps += sorted(elsewhere, key=lambda step: step.seconds)
    words = suites.words(mutant.file)
    steps += sorted(python, key=lambda s: (not words & suites.words(s.tests[0].of), s.seconds))
    by_cost = sorted(
        seeds.values(), key=lambda tests: sum(t.seconds for t in tests) / len(tests) ** 2
    )
    steps += [Step(tests, open_ended=True) for tests in by_cost]
    return steps


_FAILED_TEST = re.compile(r"^\[  FAILED  \] ([^\s,]+)", re.MULTILINE)
_RAN_TEST = re.compile(r"^\[ RUN      \] (\S+)", re.MULTILINE)
_FAILED_SEED = re.compile(r"seed (\d+) FAILED")
_FAILED_SCRIPT = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def _caught_by(step: Step, done: Run) -> str:
    """Returns the test that failed, and how if it was no plain failure."""
    first = step.tests[0]
    how = ""
    if done.code is None:
        how = " (out of time)"
    elif done.code < 0:
        how = f" (signal {-done.code})"
    if first.kind == "gtest":
        names = _FAILED_TEST.findall(done.output) or _RAN_TEST.findall(done.output)[-1:]
        return f"{first.of} {names[0] if names else '?'}{how}"
    if first.kind == "simulate":
        seed = _FAILED_SEED.search(done.output)
        return f"simulate {first.of} seed {seed[1] if seed else '?'}{how}"
    failed = _FAILED_SCRIPT.search(done.output)
    return f"{failed[1].split(' ')[0] if failed else first.of}{how}"


class Judge:
    """Runs mutants against the tests that reach them."""

    def __init__(self, records: list[Record], budget: float, commit: str) -> None:
        self._budget = budget
        self._commit = commit
        self._reaching: dict[int, list[Test]] = {}
        for record in records:
            if record.passed:
                for number in record.reached:
                    self._reaching.setdefault(number, []).append(record.test)

    def reaching(self, number: int) -> list[Test]:
        """Returns the tests that reach a mutant's place and pass without it."""
        return self._reaching.get(number, [])

    def judge(self, mutant: Mutant, number: int) -> Row:
        """Runs one mutant until it is caught or its time is over."""
        steps = plan(mutant, self.reaching(number))
        if not steps:
            return Row(mutant.name, "unreached", commit=self._commit)
        started = time.monotonic()
        seeds = tests = 0
        cut_short = False
        for at, step in enumerate(steps):
            left = self._budget - (time.monotonic() - started)
            if left <= 0:
                cut_short = True
                break
            if step.open_ended:
                share = left / (len(steps) - at)
                ran, by = self._sweep(step, number, share)
                seeds += ran
            else:
                by = self._run(step, number)
                tests += len(step.tests) if not step.seeds else 0
                seeds += step.seeds
            if by:
                return Row(
                    mutant.name,
                    "caught",
                    by,
                    seeds,
                    round(time.monotonic() - started, 1),
                    self._commit,
                )
        total = sum(test.kind != "simulate" for test in self.reaching(number))
        ran_all = f"{tests} of {total} tests" + (", out of time" if cut_short else "")
        return Row(
            mutant.name,
            "survived",
            ran_all,
            seeds,
            round(time.monotonic() - started, 1),
            self._commit,
        )

    def _command(self, step: Step) -> list[str]:
        first = step.tests[0]
        if first.kind == "gtest":
            return suites.gtest(first.of, [test.name for test in step.tests])
        if first.kind == "simulate":
            return suites.simulate(first.of, int(first.name), 1, GRACE + 10 * first.seconds)
        return suites.pytest(*(f"{test.of}::{test.name}" for test in step.tests))

    def _run(self, step: Step, number: int) -> str:
        """Returns what caught the mutant, or nothing."""
        startup = 8.0 if step.tests[0].kind == "pytest" else 0.0
        timeout = startup + GRACE + 10 * step.seconds
        command = self._command(step)
        environment = suites.environment_of_python()
        chosen = {**environment, "TOKENYARD_MUTANT": str(number)}
        if step.tests[0].kind == "pytest":
            chosen.update(suites.fresh_cache())
        done = suites.run(command, timeout, chosen)
        if done.code == 0:
            return ""
        by = _caught_by(step, done)
        if done.code is None or any(suites.is_of_real_time(test) for test in step.tests):
            # Perhaps it was the machine: without the mutant it must pass, now and in time.
            again = suites.run(command, timeout, environment)
            if again.code != 0:
                return ""
        return by

    def _sweep(self, step: Step, number: int, share: float) -> tuple[int, str]:
        """Runs seeds that were not recorded. Returns how many, and what caught the mutant."""
        suite = step.tests[0].of
        slowest = max(test.seconds for test in step.tests)
        command = suites.simulate(suite, 1000, 1_000_000, GRACE + 10 * slowest)
        command += ["--budget", f"{max(share, 0.1):.1f}"]
        done = suites.run(
            command, share + GRACE + 11 * slowest, {"TOKENYARD_MUTANT": str(number)}, " FAILED"
        )
        ran = re.search(rf"^{suite}: (\d+) (?:of \d+ )?seeds", done.output, re.MULTILINE)
        if done.code == 0:
            return int(ran[1]) if ran else 0, ""
        seed = _FAILED_SEED.search(done.output)
        if seed is None and done.code is None:
            return 0, ""  # The sweep itself was slow to end.
        by = f"simulate {suite} seed {seed[1] if seed else '?'}"
        return int(seed[1]) - 999 if seed else 0, by


# ---- results ------------------------------------------------------------------------------------


def results(
    drawn: dict[str, list[Mutant]], ledger: Ledger, explained: dict[str, str]
) -> list[dict]:
    """Returns a row per folder. `drawn` counts the mutants that have been run so far."""
    rows = []
    for part, mutants in drawn.items():
        known = [ledger.rows[m.name] for m in mutants if m.name in ledger.rows]
        caught = sum(row.outcome == "caught" for row in known)
        equivalent = sum(row.outcome != "caught" and row.mutant in explained for row in known)
        rows.append(
            {
                "folder": PARTS[part].rstrip("/"),
                "drawn": len(known),
                "caught": caught,
                "equivalent": equivalent,
                "survived": len(known) - caught - equivalent,
            }
        )
    return rows


def results_text(rows: list[dict], environment: dict) -> str:
    """Returns the file of results: one row per line."""
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    about = json.dumps(environment, separators=(",", ":"))
    return f'{{"environment":{about},\n"rows":[\n{lines}\n]}}\n'


def survivors_page(mutants: dict[str, Mutant], ledger: Ledger, explained: dict[str, str]) -> str:
    """Returns the page that lists what survived, with what each mutant changes."""
    lines = [
        "# Mutants that survived",
        "",
        "Written by `./run mutants --report` from the ledger; docs/mutants.md explains it.",
        "A reason stands in tests/mutants/reasons.txt.",
        "",
        "| Line | Change | Operator | What was run | Reason |",
        "|---|---|---|---|---|",
    ]
    reasons = equivalents(HERE / "reasons.txt")
    for row in sorted(ledger.rows.values(), key=lambda row: row.mutant):
        mutant = mutants.get(row.mutant)
        if row.outcome == "caught" or row.mutant in explained or mutant is None:
            continue
        ran = "nothing reaches it" if row.outcome == "unreached" else row.by
        if row.seeds:
            ran += f", {row.seeds} seeds"
        what = mutant.change.what.replace("|", "\\|")
        reason = reasons.get(row.mutant, "")
        lines.append(
            f"| {mutant.file}:{mutant.line} | `{what}` | {mutant.operator} | {ran} | {reason} |"
        )
    return "\n".join(lines) + "\n"
