"""Two arguments of one type are swapped."""

import itertools
import re

from schemata import shown

from .cursors import Cursor, TypeKind
from .source_file import SourceFile

SYMMETRIC = {"min", "max", "swap", "gcd", "lcm", "iter_swap"}
_ITERATORS = re.compile(rb"\bc?(begin|end)\(")


def of_call(file: SourceFile, cursor: Cursor) -> None:
    """Changes a call."""
    if cursor.spelling.startswith("operator") or cursor.spelling in SYMMETRIC:
        return
    arguments = [argument for argument in cursor.get_arguments() if argument is not None]
    start, text = cursor.extent.start.offset, file.of(cursor)
    for one, other in itertools.pairwise(arguments):
        a, b = file.of(one), file.of(other)
        if _ITERATORS.search(a) or _ITERATORS.search(b):
            continue  # A range that ends before it begins.
        if not a or not b or a == b or one.extent.end.offset > other.extent.start.offset:
            continue
        if _bare(one) != _bare(other) or _bare(one) in ("", "<dependent type>", "void"):
            continue
        middle = file.text[one.extent.end.offset : other.extent.start.offset]
        changed = (
            text[: one.extent.start.offset - start] + b + middle + a
            + text[other.extent.end.offset - start :]
        )  # fmt: skip
        file.choice(cursor, "swap", changed,
                    f"{cursor.spelling}: {shown(file.line_of(one), 28)}, "
                    f"{shown(file.line_of(other), 28)} -> swapped")  # fmt: skip


def _bare(cursor: Cursor) -> str:
    kind = cursor.type.get_canonical()
    if kind.kind in (TypeKind.LVALUEREFERENCE, TypeKind.RVALUEREFERENCE):
        kind = kind.get_pointee()
    return kind.spelling.replace("const ", "")
