"""A file's text, and the changes found in it."""

import bisect
import re

from schemata import Change, one_line, shown

from .cursors import Cursor

LONGEST = 500  # Bytes of an expression that is written twice.


class SourceFile:
    """The changes found in one file."""

    def __init__(self, text: bytes, macros: list[tuple[int, int]]) -> None:
        self.text = text
        self.changes: set[Change] = set()
        macros = sorted(macros)
        self._starts = [start for start, _ in macros]
        self._ends = [end for _, end in macros]

    def from_macro(self, start: int, end: int) -> bool:
        """Returns whether a macro's invocation contains the range."""
        at = bisect.bisect_right(self._starts, start)
        return any(self._ends[i] >= end for i in range(max(0, at - 4), at))

    def of(self, cursor: Cursor) -> bytes:
        """Returns the text of a cursor."""
        return self.text[cursor.extent.start.offset : cursor.extent.end.offset]

    def line_of(self, cursor: Cursor) -> str:
        """Returns the text of a cursor in one line; "..." where it has none."""
        return one_line(self.of(cursor)) or "..."

    def operator_between(self, left: Cursor, right: Cursor) -> str:
        """Returns the operator of two operands."""
        between = self.text[left.extent.end.offset : right.extent.start.offset]
        return re.sub(rb"//[^\n]*|/\*.*?\*/|\s", b"", between).decode(errors="replace")

    def statement_end(self, cursor: Cursor) -> int:
        """Returns where an expression's statement ends, after its semicolon; 0 if it is none."""
        match = re.compile(rb"\s*;").match(self.text, cursor.extent.end.offset)
        return match.end() if match else 0

    def add(
        self, cursor: Cursor, operator: str, form: str, text: str, what: str, end: int = 0
    ) -> None:
        """Adds a change of the cursor's range, which may go on to `end`."""
        start, end = cursor.extent.start.offset, end or cursor.extent.end.offset
        if start < end and not self.from_macro(start, end):
            self.changes.add(Change(start, end, operator, form, text, what))

    def choice(self, cursor: Cursor, operator: str, text: bytes, what: str = "") -> None:
        """Adds a change that writes the expression a second time."""
        original = self.of(cursor)
        if len(original) > LONGEST or b"co_await" in original:
            return
        line = one_line(text)
        before = one_line(original)
        if line is None or before is None:
            return
        self.add(cursor, operator, "choice", line, what or f"{shown(before)} -> {shown(line)}")
