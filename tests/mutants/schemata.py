"""Mutants: their kinds and names, and files rewritten to hold all of theirs.

A mutant changes a range of a file's bytes. Its replacement stands beside the original text, and a
switch chooses between the two while the program runs, so one build holds every mutant (mutant
schemata, Untch et al. 1993). A rewritten C++ file keeps its line numbers.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterable

OPERATORS = {
    "compare": "a comparison is another one: == is >=, < is <=, or it ignores that counters wrap",
    "constant": "a number is off by one",
    "condition": "a condition is always true, or inverted",
    "term": "a term of && or || is left out",
    "statement": "a statement is left out",
    "return": "a function returns early",
    "swap": "two arguments of one type are swapped",
    "epoch": "an epoch, parity or sequence number is that of another call",
    "bound": "a loop ends one turn early, or after its first turn",
    "check": "a check of an argument or a state is left out",
    "release": "a resource is not released",
}


@dataclasses.dataclass(frozen=True, order=True)
class Change:
    """One mutant as a scanner finds it.

    `form` says how text and original stand together:
      choice  the text is an expression, which takes the place of the range
      around  the text is "BEFORE\\0AFTER", in which @ stands for the switch
    """

    start: int
    end: int
    operator: str
    form: str
    text: str
    what: str  # For a reader: what is there -> what the mutant has.


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change with its name: the name holds until the text of its line changes."""

    file: str
    line: int
    index: int  # Among the changes of the file.
    name: str
    change: Change

    @property
    def operator(self) -> str:
        """Returns the operator."""
        return self.change.operator


def line_hash(line: str) -> str:
    """Returns eight hexadecimal digits for a line, whatever its indentation."""
    return hashlib.sha1(" ".join(line.split()).encode()).hexdigest()[:8]


def named(file: str, text: bytes, changes: Iterable[Change]) -> list[Mutant]:
    """Returns the changes of a file as mutants.

    The name is "FILE OPERATOR HASH.NUMBER": the hash of the line where the range begins, and which
    of the file's mutants with this operator and hash it is. It stays when lines move.
    """
    lines = text.split(b"\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    counts: dict[str, int] = {}
    found = []
    row = 0
    for index, change in enumerate(sorted(set(changes))):
        while starts[row + 1] <= change.start:
            row += 1
        stem = f"{file} {change.operator} {line_hash(lines[row].decode(errors='replace'))}"
        counts[stem] = counts.get(stem, 0) + 1
        found.append(Mutant(file, row + 1, index, f"{stem}.{counts[stem]}", change))
    return found


# ---- rewriting ----------------------------------------------------------------------------------

Switch = Callable[[Mutant], str]


@dataclasses.dataclass
class _Range:
    start: int
    end: int
    mutants: list[Mutant]
    inner: list["_Range"]


def _nested(mutants: Iterable[Mutant]) -> _Range:
    """Returns the ranges as a tree. A range that overlaps another one in part is left out."""
    by_range: dict[tuple[int, int], list[Mutant]] = {}
    for mutant in mutants:
        by_range.setdefault((mutant.change.start, mutant.change.end), []).append(mutant)
    root = _Range(0, 1 << 62, [], [])
    above = [root]
    for (start, end), those in sorted(by_range.items(), key=lambda item: (item[0][0], -item[0][1])):
        while above[-1].end <= start:
            above.pop()
        if end > above[-1].end:
            continue
        node = _Range(start, end, those, [])
        above[-1].inner.append(node)
        above.append(node)
    return root


@dataclasses.dataclass
class Rewritten:
    """A file's new text, and where the text of each mutant lies in it."""

    text: bytes
    spans: list[tuple[int, int, Mutant]]


def rewrite(
    text: bytes, mutants: Iterable[Mutant], switch: Switch, python: bool = False
) -> Rewritten:
    """Returns the file with a switch for each mutant."""
    parts: list[bytes] = []
    spans: list[tuple[int, int, Mutant]] = []
    length = 0

    def put(piece: bytes) -> None:
        nonlocal length
        parts.append(piece)
        length += len(piece)

    def put_node(node: _Range) -> None:
        around = [m for m in node.mutants if m.change.form == "around"]
        # In Python only one of them may stand on the statement's own line.
        around.sort(key=lambda mutant: mutant.operator not in ("return", "bound"))
        choices = [m for m in node.mutants if m.change.form == "choice"]
        opened = []
        for mutant in around:
            before, _, after = mutant.change.text.partition("\0")
            begin = length
            put(before.replace("@", switch(mutant)).encode())
            opened.append((mutant, begin, after))
        begin = length
        closing = b""
        for mutant in choices:
            at = length
            if python:
                put(f"(({mutant.change.text}) if {switch(mutant)} else ".encode())
            else:
                put(f"({switch(mutant)}?({mutant.change.text}):".encode())
            spans.append((at, length, mutant))
            closing += b")"
        if choices:
            put(b"(")
            closing += b")"
        put_inner(node)
        put(closing)
        for mutant in choices:
            spans.append((begin, length, mutant))
        for mutant, begin, after in reversed(opened):
            put(after.replace("@", switch(mutant)).encode())
            spans.append((begin, length, mutant))

    def put_inner(node: _Range) -> None:
        at = node.start
        end = min(node.end, len(text))
        for inner in node.inner:
            put(text[at : inner.start])
            put_node(inner)
            at = inner.end
        put(text[at:end])

    put_inner(_nested(mutants))
    return Rewritten(b"".join(parts), spans)


def culprits(rewritten: Rewritten, line: int, column: int) -> list[Mutant]:
    """Returns the mutants that a compiler's complaint at a place of the new text is about.

    These are the mutants of the shortest span that covers the place.
    """
    start = 0
    for _ in range(line - 1):
        start = rewritten.text.find(b"\n", start) + 1
        if start == 0:
            return []
    place = start + column - 1
    covering = [span for span in rewritten.spans if span[0] <= place < span[1]]
    if not covering:
        return []
    shortest = min(end - begin for begin, end, _ in covering)
    return [mutant for begin, end, mutant in covering if end - begin == shortest]


def on_line(rewritten: Rewritten, line: int) -> list[Mutant]:
    """Returns all mutants whose spans touch a line of the new text."""
    start = 0
    for _ in range(line - 1):
        start = rewritten.text.find(b"\n", start) + 1
    end = rewritten.text.find(b"\n", start)
    end = len(rewritten.text) if end < 0 else end
    touching = {m.name: m for begin, to, m in rewritten.spans if begin <= end and to > start}
    return list(touching.values())


_COMMENTS = re.compile(rb"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)


def one_line(text: bytes) -> str | None:
    """Returns C++ text without comments on one line, or None where that cannot be done."""
    if b"\n" in text and (re.search(rb"^\s*#", text, re.MULTILINE) or b'R"' in text):
        return None

    def kept(token: re.Match[bytes]) -> bytes:
        return b" " if token.group().startswith(b"/") else token.group()

    return b" ".join(_COMMENTS.sub(kept, text).split(b"\n")).decode()


def shown(text: str, limit: int = 60) -> str:
    """Returns text for a table: one line, cut where it is long."""
    words = " ".join(text.split())
    return words if len(words) <= limit else words[: limit - 3] + "..."
