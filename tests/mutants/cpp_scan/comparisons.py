"""Comparisons become other ones, and terms of && and || are left out."""

import re

from schemata import shown

from .cursors import INTEGERS, Cursor, TypeKind, children
from .source_file import SourceFile

COMPARISONS = {"==": ">=", "!=": "<", "<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_ORDERED = (*INTEGERS, TypeKind.FLOAT, TypeKind.DOUBLE, TypeKind.DEPENDENT, TypeKind.UNEXPOSED)


def may_be_ordered(cursor: Cursor) -> bool:
    """Returns whether < may compare it; a template's types are not known."""
    return cursor.type.get_canonical().kind in _ORDERED


def of_binary(file: SourceFile, cursor: Cursor) -> None:
    """Changes a binary operator."""
    operands = children(cursor)
    if len(operands) != 2:
        return
    left, right = operands
    operator = file.operator_between(left, right)
    a, b = file.of(left), file.of(right)
    if operator in ("&&", "||"):
        file.choice(cursor, "term", b"static_cast<bool>(" + a + b")",
                    f"{operator} {shown(file.line_of(right))} -> left out")  # fmt: skip
        file.choice(cursor, "term", b"static_cast<bool>(" + b + b")",
                    f"{shown(file.line_of(left))} {operator} -> left out")  # fmt: skip
    elif operator in COMPARISONS and may_be_ordered(left) and may_be_ordered(right):
        file.choice(cursor, "compare", a + b" " + COMPARISONS[operator].encode() + b" " + b)
        # A difference that is compared with zero as a signed number holds when counters wrap.
        wrap = re.fullmatch(
            rb"(?:static_cast<int(?:32|64)_t>|int(?:32|64)_t)\((.+) - (.+)\)", a, re.DOTALL
        )
        if wrap and b.strip() == b"0":
            file.choice(
                cursor,
                "compare",
                b"(" + wrap[1] + b") " + operator.encode() + b" (" + wrap[2] + b")",
            )
