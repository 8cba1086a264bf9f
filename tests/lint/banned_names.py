"""Checks that no identifier has a name that was given up; banned_names.txt lists them.

A line of the list is `old | new | files | marks`. `old` is a regular expression for a whole
identifier, `files` one that finds the paths it applies to. Marks may be left out: `text` searches
comments and strings instead of code, `pending` lists what is left as a note.
"""

import re
import sys

import sources

HOME = "tests/lint/"


def occurrences(old: str, scope: str, code: dict[str, str]) -> list[tuple[str, int, str]]:
    """Returns file, line and identifier of each place that has the old name."""
    name = re.compile(rf"(?<![A-Za-z0-9_])(?:{old})(?![A-Za-z0-9_])")
    return [
        (file, text.count("\n", 0, match.start()) + 1, match.group())
        for file, text in code.items()
        if not file.startswith(HOME) and re.search(scope, file)
        for match in name.finditer(text)
    ]


def check(files: dict[str, str], rows: list[list[str]]) -> tuple[list[str], list[str]]:
    """Returns notes on pending lines, and complaints on all others."""
    code = {name: sources.code_of(name, text) for name, text in files.items()}
    prose = {name: sources.text_of(name, text) for name, text in files.items()}
    notes, found = [], []
    left = pending = 0
    for row in rows:
        marks = set(" ".join(row[3:]).split())
        if len(row) not in (3, 4) or marks - {"text", "pending"}:
            found.append(f"banned_names.txt: {' | '.join(row)}: want old | new | files [| marks]")
            continue
        old, new, scope = row[:3]
        places = occurrences(old, scope, prose if "text" in marks else code)
        if "pending" in marks:
            pending += 1
            left += len(places)
            notes += [f"{file}:{line}: {word}; say {new}" for file, line, word in places]
            if not places:
                notes.append(f"{old}: pending, and no occurrence is left; remove the mark")
        else:
            found += [f"{file}:{line}: {word}; say {new}" for file, line, word in places]
    if pending:
        notes.append(f"{pending} of {len(rows)} names are pending, with {left} occurrences")
    return notes, found


def main() -> int:
    """Returns 1 if a name that was given up is back."""
    sources.options(__doc__)
    files = sources.texts()
    rows = sources.rows("banned_names.txt")
    notes, found = check(files, rows)
    return sources.report("names", notes, found, f"{len(files)} files, {len(rows)} names")


if __name__ == "__main__":
    sys.exit(main())
