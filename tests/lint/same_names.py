"""Checks that one part has two files of one name only where both implement one interface.

same_names.txt lists these: `part | folders | names | interface`. A name is a file's without its
suffix, so that a header and its implementation count as one; `*` stands for every name. An
interface of `pending` marks a pair that is still to be renamed.
"""

import collections
import sys
from pathlib import PurePosixPath

import sources


def repeated(names: list[str]) -> dict[tuple[str, str], set[str]]:
    """Returns the folders below each part src/X that hold a file of one name, if several do."""
    folders: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    for name in names:
        path = PurePosixPath(name)
        if path.parts[0] == "src" and len(path.parts) > 2:
            part = "/".join(path.parts[:2])
            folders[part, path.stem].add("/".join(path.parts[2:-1]) or ".")
    return {key: where for key, where in folders.items() if len(where) > 1}


def check(names: list[str], rows: list[list[str]]) -> tuple[list[str], list[str]]:
    """Returns notes on pending pairs and rows without use, and complaints on pairs not listed."""
    notes, found = [], []
    used = [False] * len(rows)
    pending = 0
    for (part, stem), where in sorted(repeated(names).items()):
        for index, (of_part, folders, stems, interface) in enumerate(rows):
            listed = stems == "*" or stem in stems.split()
            if part == of_part and listed and where <= set(folders.split()):
                used[index] = True
                pending += interface == "pending"
                break
        else:
            places = ", ".join(sorted(where))
            found.append(
                f"{part}: {stem} stands in {places}; name one after its difference, or list the "
                "interface that both implement in tests/lint/same_names.txt"
            )
    unused = [row for row, is_used in zip(rows, used, strict=True) if not is_used]
    notes += [f"same_names.txt: {' | '.join(row)}: no such pair" for row in unused]
    if pending:
        notes.append(f"{pending} names stand twice and are pending")
    return notes, found


def main() -> int:
    """Returns 1 if a name stands twice for no interface."""
    sources.options(__doc__)
    names = [name for name in sources.tracked() if name.endswith((".hpp", ".cpp", ".cu"))]
    notes, found = check(names, sources.rows("same_names.txt"))
    return sources.report("same names", notes, found, f"{len(names)} files")


if __name__ == "__main__":
    sys.exit(main())
