"""Tells which lines and branches the tests ran: after `./run test --coverage`, which calls it.

Counts are of clang's source-based coverage, over all programs of the tests and the Python module.
A process that is killed adds nothing to them.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
TREE = ROOT / "build" / "coverage"
SOURCES = ("src/", "include/", "python/bindings/")
DEPTH = 3
"""Folders are told to this depth: src/expert_parallel/throughput."""


def programs() -> list[pathlib.Path]:
    return [
        *sorted(path for path in (TREE / "tests").glob("*_test") if path.is_file()),
        *(path for path in [TREE / "tests" / "simulate"] if path.exists()),
        *sorted((TREE / "python" / "bindings").glob("_tokenyard*.so")),
    ]


def merged_counts() -> pathlib.Path:
    """Adds up the counts of all processes."""
    raw = sorted((TREE / "counts").glob("*.profraw"))
    if not raw:
        sys.exit("No counts in build/coverage: run ./run test --coverage first.")
    merged = TREE / "all.profdata"
    merge = ["llvm-profdata-16", "merge", "--sparse", "--failure-mode=all", "-o", str(merged)]
    subprocess.run([*merge, *map(str, raw)], check=True)
    return merged


def coverage_of_files() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each source file's path relative to the root, and what llvm-cov says of it."""
    first, *others = map(str, programs())
    export = ["llvm-cov-16", "export", "--skip-functions", "--skip-expansions"]
    objects = [word for other in others for word in ("--object", other)]
    text = subprocess.run(
        [*export, f"--instr-profile={merged_counts()}", first, *objects],
        check=True,
        stdout=subprocess.PIPE,
    ).stdout
    for file in json.loads(text)["data"][0]["files"]:
        path = pathlib.Path(file["filename"])
        if path.is_relative_to(ROOT) and str(path.relative_to(ROOT)).startswith(SOURCES):
            yield str(path.relative_to(ROOT)), file


def branches_of(file: dict[str, Any]) -> dict[tuple[int, int], list[int]]:
    """Returns how often each branch was true and false, by line and column.

    A branch of a template, or of a header that several programs compile, is one branch.
    """
    branches: dict[tuple[int, int], list[int]] = {}
    for line, column, _, _, true, false, *_ in file["branches"]:
        counts = branches.setdefault((line, column), [0, 0])
        counts[0] += true
        counts[1] += false
    return branches


def folder_of(path: str) -> str:
    return "/".join(path.split("/")[:-1][:DEPTH])


def report(files: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Returns by folder the numbers of lines and of branches' sides, and of those that ran."""
    folders: dict[str, Any] = collections.defaultdict(collections.Counter)
    for path, file in files:
        row = folders[folder_of(path)]
        row["lines"] += file["summary"]["lines"]["count"]
        row["lines_run"] += file["summary"]["lines"]["covered"]
        for counts in branches_of(file).values():
            row["branches"] += 2
            row["branches_run"] += sum(count > 0 for count in counts)
    return dict(sorted(folders.items()))


def print_report(folders: dict[str, Any]) -> None:
    everything: dict[str, int] = collections.Counter()
    for row in folders.values():
        everything.update(row)
    print(f"{'folder':<40} {'lines':>7} {'run':>6}  {'branches':>8} {'run':>6}")
    for folder, row in [*folders.items(), ("all", everything)]:
        lines, branches = row["lines"], row["branches"]
        ran = row["lines_run"] / max(lines, 1), row["branches_run"] / max(branches, 1)
        print(f"{folder:<40} {lines:>7} {ran[0]:>6.1%}  {branches:>8} {ran[1]:>6.1%}")


def print_missed(files: list[tuple[str, dict[str, Any]]], folder: str) -> None:
    for path, file in files:
        if not path.startswith(folder.rstrip("/")):
            continue
        text = (ROOT / path).read_text().splitlines()
        for (line, column), (true, false) in sorted(branches_of(file).items()):
            if true == 0 or false == 0:
                side = "never true" if true == 0 else "never false"
                if true == false:
                    side = "not reached"
                print(f"{path}:{line}:{column}: {side}: {text[line - 1].strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--missed", metavar="FOLDER", help="list branches that were not taken")
    arguments = parser.parse_args()
    files = list(coverage_of_files())
    if arguments.missed is not None:
        print_missed(files, arguments.missed)
        return
    folders = report(files)
    (TREE / "coverage.json").write_text(json.dumps(folders, indent=1) + "\n")
    print_report(folders)


if __name__ == "__main__":
    main()
