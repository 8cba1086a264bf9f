"""Semantic mutants: do the suites notice a change of meaning? See docs/mutants.md."""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time

import suites
import sweep
import tree as trees
from parts import BUILD, HERE, PARTS, ROOT, part_of
from schemata import Mutant
from suites import PROGRAMS
from sweep import Judge, Ledger, Row

UNITS_OF_SAMPLE = 2  # Translation units of a file: a header of kernels is in two.


def commit() -> str:
    """Returns the commit that is checked out."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="./run mutants", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"without one, all: {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--sample", action="store_true", help="mutants chosen by the commit, not the ledger's draw"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help="end after so many minutes of running mutants; with --sample, after so many in all",
    )
    parser.add_argument("--budget", type=float, default=30, help="seconds per mutant")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="of the build; mutants run one at a time"
    )
    parser.add_argument(
        "--every", action="store_true", help="all mutants of the parts, not the draw"
    )
    parser.add_argument(
        "--units",
        type=int,
        metavar="N",
        help="only mutants of files that at most N translation units include: a cheap build",
    )
    parser.add_argument("--again", action="store_true", help="run survivors of the ledger again")
    parser.add_argument(
        "--module",
        metavar="FOLDER",
        help="with the part python alone: take the _tokenyard there, and build nothing",
    )
    parser.add_argument(
        "--programs", metavar="NAME,...", help="build and run only these, such as net_test,simulate"
    )
    parser.add_argument(
        "--scripts", metavar="NAME,...", help="run only these tests in Python, such as test_demo"
    )
    parser.add_argument("--built", action="store_true", help="take what is built as it is")
    parser.add_argument("--no-python", action="store_true", help="without the tests in Python")
    parser.add_argument(
        "--build-only",
        action="store_true",
        help="write and build the tree",
    )
    parser.add_argument(
        "--one", metavar="NAME", help="one mutant, by its name, with its command line"
    )
    parser.add_argument("--list", action="store_true", help="the mutants there are, by name")
    parser.add_argument(
        "--check", action="store_true", help="whether explained mutants' lines still exist"
    )
    parser.add_argument(
        "--report", action="store_true", help="write the results and the page of survivors"
    )
    chosen = parser.parse_args()
    for part in chosen.parts:
        if part not in PARTS:
            parser.error(f"no part is called {part}; there are {', '.join(PARTS)}")
    return chosen


def check() -> int:
    """Checks that each explained mutant's line exists. Returns the exit status."""
    gone = []
    for name in ("equivalent.txt", "reasons.txt"):
        gone += [
            f"{name}: {mutant}"
            for mutant in sweep.equivalents(HERE / name)
            if not sweep.has_line(mutant)
        ]
    for line in gone:
        print(f"the line of this mutant has changed or is gone: {line}")
    return 1 if gone else 0


def report(tree: trees.Tree) -> None:
    """Writes bench/results/mutants.json and the page of survivors."""
    ledger, explained = Ledger(), sweep.equivalents()
    by_name = {mutant.name: mutant for mutant in tree.all()}
    unknown = sorted(set(explained) - set(by_name))
    for name in unknown:
        print(f"equivalent.txt names no mutant: {name}")
    if forgotten := ledger.forget_gone(set(by_name) | set(tree.dropped)):
        print(f"{forgotten} rows of the ledger are of lines that have changed; they are left out")
        ledger.write()
    rows = sweep.results(sweep.draw(tree.all()), ledger, explained)
    environment = {
        "cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(),
        "commit": commit()[:7], "draw": sweep.SEED, "total": sweep.TOTAL,
        "not_compiling": len(tree.dropped), "mutants": len(by_name),
        "date": str(datetime.date.today()),
    }  # fmt: skip
    (ROOT / "bench/results/mutants.json").write_text(sweep.results_text(rows, environment))
    (HERE / "survivors.md").write_text(sweep.survivors_page(by_name, ledger, explained))
    for row in rows:
        print(
            "{folder:24} drawn {drawn:4}  caught {caught:4}  equivalent {equivalent:3}"
            "  survived {survived:3}".format(**row)
        )


def chosen_mutants(
    tree: trees.Tree, options: argparse.Namespace, parts: list[str], ledger: Ledger
) -> list[Mutant]:
    """Returns the mutants to run, in order."""
    if options.sample:
        units = trees.units_of_files()
        cheap = [m for m in tree.all() if units[m.file] <= (options.units or UNITS_OF_SAMPLE)]
        return sweep.sample(cheap, commit())
    total = len(PARTS) * len(tree.all()) if options.every else sweep.TOTAL
    drawn = [
        m
        for part, those in sweep.draw(tree.all(), total=total).items()
        if part in parts
        for m in those
    ]
    if options.again:
        explained = sweep.equivalents()
        return [
            m for m in drawn
            if m.name in ledger.rows and ledger.rows[m.name].outcome != "caught"
            and m.name not in explained
        ]  # fmt: skip
    return [m for m in drawn if m.name not in ledger.rows]


def cheap(mutants: list[Mutant], units: int | None) -> list[Mutant]:
    """Returns the mutants of files that few translation units include."""
    if units is None:
        return mutants
    count = trees.units_of_files()
    return [m for m in mutants if m.file.endswith(".py") or count[m.file] <= units]


CHOSEN = BUILD / "chosen.json"


def built_before(options: argparse.Namespace) -> list[str]:
    """Returns the names of the mutants that the build holds. They stay: nothing is built twice."""
    return json.loads(CHOSEN.read_text()) if CHOSEN.exists() and not options.sample else []


def choose(
    tree: trees.Tree, wanted: list[Mutant], before: list[str], options: argparse.Namespace
) -> None:
    """Makes the build hold the mutants that are wanted beside those that it holds."""
    names = dict.fromkeys(before)
    if not options.built:
        names.update(dict.fromkeys(mutant.name for mutant in wanted))
        CHOSEN.write_text(json.dumps(list(names), indent=0))
    tree.choose(names)


def show(row: Row, mutant: Mutant) -> None:
    """Prints a mutant's result."""
    seeds = f", {row.seeds} seeds" if row.seeds else ""
    print(f"{row.outcome:9} {mutant.file}:{mutant.line} {mutant.operator}: {mutant.change.what}\n"
          f"          {row.by}{seeds} ({row.seconds} s)", flush=True)  # fmt: skip


def chosen_parts(options: argparse.Namespace) -> list[str]:
    """Returns the parts that were asked for. A sample is of one, which the commit chooses."""
    if options.parts:
        return options.parts
    return [list(PARTS)[int(commit(), 16) % len(PARTS)]] if options.sample else list(PARTS)


def built_programs(options: argparse.Namespace, parts: list[str]) -> list[str]:
    """Returns the names of the programs to build."""
    if options.programs:
        return options.programs.split(",")
    programs = sorted({program for part in parts for program in PROGRAMS[part]})
    if options.sample:  # Those of the part itself.
        near = {f"{part}_test" for part in parts} | {"simulate", "_tokenyard"}
        programs = [program for program in programs if program in near]
    return programs


def build(tree: trees.Tree, programs: list[str], options: argparse.Namespace) -> None:
    """Writes and builds the tree."""
    if options.built:
        return
    tree.write()
    if options.module:
        os.environ["TOKENYARD_MUTANTS_MODULE"] = options.module
        trees.check_python(tree)
    else:
        trees.build(tree, programs, options.jobs)
    for part, by_operator in trees.counts(tree).items():
        words = ", ".join(f"{word} {count}" for word, count in by_operator.most_common())
        trees.note(f"{part}: {sum(by_operator.values())} mutants: {words}")


def run_one(tree: trees.Tree, judge: Judge, name: str) -> int:
    """Runs one mutant. Returns the exit status."""
    for mutant in tree.all():
        if mutant.name == name:
            show(judge.judge(mutant, tree.number(mutant)), mutant)
            print(f"TOKENYARD_MUTANT={tree.number(mutant)} chooses it")
            return 0
    print(f"no mutant is called {name}", file=sys.stderr)
    return 2


def run_many(
    tree: trees.Tree,
    judge: Judge,
    options: argparse.Namespace,
    ledger: Ledger,
    wanted: list[Mutant],
    ends: float | None,
) -> None:
    """Runs the mutants that are wanted, and adds them to the ledger."""
    explained = sweep.equivalents()
    survivors = ran = 0
    for mutant in wanted:
        if not tree.holds(mutant):
            continue
        if ends is not None and time.monotonic() > ends:
            break
        if options.sample and not judge.reaching(tree.number(mutant)):
            continue  # A sample records a part of the tests only.
        row = judge.judge(mutant, tree.number(mutant))
        ledger.add(row)
        ran += 1
        survivors += row.outcome != "caught" and mutant.name not in explained
        show(row, mutant)
    print(f"{ran} mutants: {ran - survivors} caught or explained, {survivors} survived")


def main() -> int:
    """Runs the command line."""
    options = arguments()
    BUILD.mkdir(parents=True, exist_ok=True)
    if options.check:
        return check()
    if options.module and options.parts != ["python"]:
        raise SystemExit("--module FOLDER goes with the part python alone")
    suites.adopt_orphans()
    started = time.monotonic()
    seconds = 60 * options.minutes if options.minutes else None
    parts = chosen_parts(options)
    (BUILD / "sample.tsv").unlink(missing_ok=True)
    ledger = Ledger(BUILD / "sample.tsv") if options.sample else Ledger()
    before = built_before(options)
    held = {str(part_of(name.split(" ")[0])) for name in before}
    read = list(PARTS) if options.report else [p for p in PARTS if p in held or p in parts]
    tree = trees.Tree(trees.scan(read))
    tree.dropped |= {
        name: "" for name, row in Ledger().rows.items() if row.outcome == "does not compile"
    }
    if options.list:
        for mutant in (m for m in tree.all() if part_of(m.file) in parts):
            print(f"{mutant.name}\t{mutant.file}:{mutant.line}\t{mutant.change.what}")
        return 0
    if options.report:
        report(tree)
        return 0
    if options.one:
        wanted = [mutant for mutant in tree.all() if mutant.name == options.one]
        if not wanted:
            raise SystemExit(f"no mutant of {', '.join(parts)} is called {options.one}")
    else:
        wanted = chosen_mutants(tree, options, parts, ledger)
        if not options.sample:
            wanted = cheap(wanted, options.units)
    choose(tree, wanted, before, options)
    programs = built_programs(options, parts)
    build(tree, programs, options)
    if not options.sample:  # The next of the draw take their places, wherever it goes on.
        for name in sorted(set(tree.dropped) - set(ledger.rows)):
            ledger.add(Row(name, "does not compile", commit=commit()[:7]))
    if options.build_only:
        return 0
    python = "_tokenyard" in programs and not options.no_python
    if options.sample:
        seconds = seconds or 300
        share = (seconds - (time.monotonic() - started)) / 2
        records = suites.record_some(tree, programs, parts, python, commit(), share)
    else:
        only = options.scripts.split(",") if options.scripts else None
        records = suites.record_all(tree, programs, parts, python, only)
        started = time.monotonic()
    judge = Judge(records, options.budget, commit()[:7])
    if options.one:
        return run_one(tree, judge, options.one)
    run_many(tree, judge, options, ledger, wanted, started + seconds if seconds else None)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
