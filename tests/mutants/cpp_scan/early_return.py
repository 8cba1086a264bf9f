"""Functions return before a statement."""

import re

from schemata import one_line, shown

from .cursors import Cursor, Kind, TypeKind
from .source_file import SourceFile


def leave_of(file: SourceFile, function: Cursor, body: Cursor) -> str:
    """Returns the statement that leaves the function, or nothing where none is known."""
    word = "co_return" if re.search(rb"\bco_(await|return|yield)\b", file.of(body)) else "return"
    if (
        function.kind in (Kind.CONSTRUCTOR, Kind.DESTRUCTOR)
        or function.result_type.kind == TypeKind.VOID
    ):
        return f"{word};"
    result = function.result_type
    if result.kind in (TypeKind.LVALUEREFERENCE, TypeKind.RVALUEREFERENCE):
        return ""
    if re.search(r"\bauto\b", result.spelling):
        return ""
    # Only the text of a coroutine tells whether it returns a value.
    if word == "co_return" and not re.search(rb"\bco_return\s+[^;\s]", file.of(body)):
        return "co_return;"
    return f"{word} {{}};"


def before(file: SourceFile, statement: Cursor, leave: str) -> None:
    """Leaves the function before a statement that is not its body's first."""
    if not leave or statement.kind in (
        Kind.RETURN_STMT, Kind.LABEL_STMT, Kind.CASE_STMT, Kind.DEFAULT_STMT, Kind.NULL_STMT,
    ):  # fmt: skip
        return
    text = shown((one_line(file.of(statement)) or "").split("{")[0], 40)
    file.add(statement, "return", "around", f"if(@){leave} \0", f"{leave[:-1]} before {text}")
