"""Conditions are always true, inverted, or, where they guard a throw, not checked."""

import re

from schemata import shown

from .cursors import Cursor
from .source_file import SourceFile


def invert(file: SourceFile, condition: Cursor) -> None:
    """Inverts a condition."""
    text = shown(file.line_of(condition))
    file.add(condition, "condition", "around", "(static_cast<bool>(\0)!=@)", f"{text} -> inverted")


def of_if(file: SourceFile, condition: Cursor, first: Cursor | None) -> None:
    """Changes the condition of an if statement with that first branch."""
    invert(file, condition)
    text = shown(file.line_of(condition))
    if first is not None and re.match(rb"\{?\s*throw\b", file.of(first)):
        file.add(condition, "check", "around", "(!@&&(\0))", f"if ({text}) throw -> not checked")
    else:
        file.add(condition, "condition", "around", "(@||(\0))", f"{text} -> true")
