"""Cursors of libclang: their kinds, and questions about one."""

import clang.cindex as cindex
from clang.cindex import Cursor, TypeKind
from clang.cindex import CursorKind as Kind

# Kinds that the library knows and its Python side does not, such as concepts.
for number in (*range(1, 320), *range(600, 610)):
    try:
        Kind.from_id(number)
    except ValueError:
        Kind(number)

INTEGERS = (
    TypeKind.CHAR_U, TypeKind.UCHAR, TypeKind.USHORT, TypeKind.UINT, TypeKind.ULONG,
    TypeKind.ULONGLONG, TypeKind.CHAR_S, TypeKind.SCHAR, TypeKind.SHORT, TypeKind.INT,
    TypeKind.LONG, TypeKind.LONGLONG,
)  # fmt: skip

__all__ = ["INTEGERS", "Cursor", "Kind", "TypeKind", "children", "cindex", "is_expression", "plain"]


def children(cursor: Cursor) -> list[Cursor]:
    return list(cursor.get_children())


def is_expression(cursor: Cursor) -> bool:
    return cursor.kind.is_expression()


def plain(cursor: Cursor) -> Cursor:
    """Returns the cursor within implicit casts, which have its extent."""
    while cursor.kind == Kind.UNEXPOSED_EXPR:
        inner = children(cursor)
        if len(inner) != 1 or inner[0].extent != cursor.extent:
            break
        cursor = inner[0]
    return cursor
