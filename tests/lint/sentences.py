"""Counts sentences that begin with a relative clause; the count of a folder may only fall.

"Who is put out was touched by a fault" has to be read twice: put a noun first. sentences.txt holds
the budget per folder. `python tests/lint/sentences.py --settle` writes today's counts as budgets,
for files that moved or sentences that are gone; it refuses if the sum would rise.
"""

import collections
import re
import sys

import sources

BUDGETS = "sentences.txt"
CLAUSE = re.compile(r"(?:who|what|whoever|whatever)\b", re.IGNORECASE)
SENTENCE = re.compile(r"[^.!?]*(?:[.!?](?!\s|$)[^.!?]*)*(?P<end>[.!?]|$)", re.DOTALL)


def clauses(name: str, text: str) -> list[tuple[int, str]]:
    """Returns line and beginning of each sentence whose subject is a clause."""
    found = []
    for number, prose in sources.prose_of(name, text):
        for sentence in SENTENCE.finditer(prose):
            words = sentence.group().strip(" \n*_")
            if CLAUSE.match(words) and sentence["end"] != "?":
                start = sentence.start() + len(sentence.group()) - len(sentence.group().lstrip())
                line = number + prose.count("\n", 0, start)
                found.append((line, " ".join(words.split())[:60]))
    return found


def folder_of(name: str) -> str:
    """Returns the folder that a file's count belongs to, at most two deep."""
    folders = name.split("/")[:-1]
    return "/".join(folders[:2]) or "."


def counted(files: dict[str, str]) -> dict[str, list[str]]:
    """Returns each folder's places, as file:line: words."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    for name, text in sorted(files.items()):
        if not name.startswith("tests/lint/"):
            found[folder_of(name)] += [f"{name}:{n}: {words}" for n, words in clauses(name, text)]
    return found


def check(found: dict[str, list[str]], budgets: dict[str, int]) -> tuple[list[str], list[str]]:
    """Returns notes and complaints: which folders are below or above their budget."""
    notes, complaints = [], []
    for folder in sorted(found.keys() | budgets.keys()):
        places, budget = found.get(folder, []), budgets.get(folder, 0)
        if len(places) > budget:
            complaints += places
            complaints.append(
                f"{folder}: {len(places)} sentences begin with a clause, {budget} may; "
                "begin with a noun"
            )
        elif len(places) < budget:
            notes.append(f"{folder}: {len(places)} of {budget}; --settle lowers the budget")
    total = sum(map(len, found.values()))
    notes.append(f"{total} sentences begin with a clause; budgets only ever fall")
    return notes, complaints


def main() -> int:
    """Returns 1 if a folder is above its budget."""
    chosen = sources.options(__doc__, "--settle")
    found = counted(sources.texts((*sources.CODE, ".md")))
    path = sources.HERE / BUDGETS
    budgets = {folder: int(count) for folder, count in sources.rows(BUDGETS)}
    if chosen.settle:
        total, before = sum(map(len, found.values())), sum(budgets.values())
        if total > before:
            print(f"sentences: {total} are more than the {before} of all budgets; rewrite some")
            return 1
        header = [line for line in path.read_text().splitlines() if line.startswith("#")]
        counts = [f"{folder} | {len(found[folder])}" for folder in sorted(found) if found[folder]]
        path.write_text("\n".join(header + counts) + "\n", encoding="utf-8")
        print(f"sentences: budgets settled at {total}, from {before}")
        return 0
    notes, complaints = check(found, budgets)
    return sources.report("sentences", notes, complaints, f"{len(found)} folders")


if __name__ == "__main__":
    sys.exit(main())
