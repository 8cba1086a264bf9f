"""Checks that a file includes only what its folder may use.

The table below "The map" in ARCHITECTURE.md is the only source of the rules: folder, what it is,
what it may use. Its rows name folders as `#include` lines do, below `src/` or `include/`:

- A row governs its folder and every folder below it that has no row of its own.
- A folder may always use what its own row governs.
- `x` in the last column allows what the row of `x` governs, `x/*` also the rows below it, and
  `x/y.hpp` that one header.
"""

import re
import sys
from pathlib import PurePosixPath

import sources

HEADING = "## The map"
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
ROOTS = ("src/", "include/")
Table = dict[str, list[str]]


def parse(architecture: str) -> Table:
    """Returns the table below the heading: what each folder may use."""
    _, heading, section = architecture.partition(f"\n{HEADING}\n")
    if not heading:
        return {}
    table: Table = {}
    for line in section.split("\n## ")[0].splitlines():
        if line.startswith("|") and not re.match(r"\|\s*(Folder|-+)\s*\|", line):
            folder, _, uses = line.strip().strip("|").split("|")
            table[folder.strip(" `")] = re.findall(r"[\w/.*]+", uses)
    return table


def row_of(path: str, table: Table) -> str | None:
    """Returns the row that governs a file or folder."""
    for folder in [path, *map(str, PurePosixPath(path).parents)]:
        if folder in table:
            return folder
    return None


def resolve(target: str, name: str, names: set[str]) -> str | None:
    """Returns the path below `src/` or `include/` of an include; None if it is not ours."""
    beside = str(PurePosixPath(name).parent / target)
    for candidate in (f"src/{target}", f"include/{target}", beside):
        if candidate in names:
            return inside(candidate)
    return None


def inside(name: str) -> str:
    """Returns a file's path as an include line names it."""
    for root in ROOTS:
        name = name.removeprefix(root)
    return name


def allowed(target: str, uses: list[str], table: Table) -> bool:
    """Returns whether one of `uses` covers the header."""
    row = row_of(target, table)
    return any(
        use in (target, row) or (use.endswith("/*") and f"{row}/".startswith(use[:-1]))
        for use in uses
    )


def complaints(files: dict[str, str], table: Table) -> list[str]:
    """Returns every include that the table does not allow, and every folder without a row."""
    if not table:
        return [f'ARCHITECTURE.md: no table below "{HEADING}"']
    names = set(files)
    found = []
    for name, text in sorted(files.items()):
        row = row_of(inside(name), table)
        if row is None:
            if name.startswith(ROOTS):
                found.append(f"{name}: its folder has no row in ARCHITECTURE.md; add one")
            continue
        for match in INCLUDE.finditer(text):
            target = resolve(match.group(1), name, names)
            if target is None or row_of(target, table) == row:
                continue
            if not allowed(target, table[row], table):
                number = text.count("\n", 0, match.start(1)) + 1
                found.append(
                    f"{name}:{number}: {row} may not use {target}; move what is shared down, or "
                    "change the table in ARCHITECTURE.md"
                )
    return found


def notes(files: dict[str, str], table: Table) -> list[str]:
    """Returns which rows govern no file, and which rows use one another."""
    governing = {row_of(inside(name), table) for name in files}
    unused = [row for row in table if row not in governing]
    reach = {row: _reach(row, table) for row in table if row in governing}
    circles = sorted({tuple(sorted((a, b))) for a in reach for b in reach[a] if a in _of(reach, b)})
    return [f"row {row}: it governs no file" for row in unused] + [
        f"rows {a} and {b} use one another" for a, b in circles if a != b
    ]


def _of(reach: dict[str, set[str]], row: str) -> set[str]:
    return reach.get(row, set())


def _reach(row: str, table: Table) -> set[str]:
    seen: set[str] = set()
    ahead = [row]
    while ahead:
        for use in table[ahead.pop()]:
            for other in table:
                named = other == use or (use.endswith("/*") and f"{other}/".startswith(use[:-1]))
                if named and other not in seen:
                    seen.add(other)
                    ahead.append(other)
    return seen


def main() -> int:
    """Returns 1 if an include breaks the table."""
    sources.options(__doc__)
    files = sources.texts((".hpp", ".cpp", ".cu"))
    table = parse((sources.ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    governed = {name: text for name, text in files.items() if row_of(inside(name), table)}
    looked_at = f"{len(governed)} files in {len(table)} rows"
    return sources.report("folders", notes(files, table), complaints(files, table), looked_at)


if __name__ == "__main__":
    sys.exit(main())
