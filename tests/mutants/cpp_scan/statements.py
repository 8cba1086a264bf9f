"""Statements are left out: checks, releases of resources, and others."""

import re

from schemata import one_line, shown

from .cursors import Cursor, Kind, children, is_expression, plain
from .source_file import SourceFile

CHECKS = re.compile(r"^(require|check|expect|ensure|verify|validate|refuse)(_|$)")
RELEASES = re.compile(
    r"^(close|release|free|reset|unlock|erase|clear|munmap|unmap|unlink|cancel|shutdown|detach|stop"
    r"|join|remove|deallocate|forget|give_back|disconnect|destroy|end|drop|return_\w+|free_\w+"
    r"|close_\w+|release_\w+|remove_\w+|\w+_free)$"
)


def leave_out(file: SourceFile, cursor: Cursor, on_failure: bool) -> None:
    """Leaves a statement out. A call on a path that ends in a failure counts as a release."""
    jump = cursor.kind in (Kind.BREAK_STMT, Kind.CONTINUE_STMT)
    if not jump and not (is_expression(cursor) and _has_effect(file, cursor)):
        return
    end = file.statement_end(cursor)
    if not end:
        return
    name = _name_of_call(cursor)
    operator = "statement"
    if CHECKS.match(name):
        operator = "check"
    elif (
        RELEASES.match(name) or plain(cursor).kind == Kind.CXX_DELETE_EXPR or (on_failure and name)
    ):
        operator = "release"
    text = one_line(file.of(cursor))
    file.add(cursor, operator, "around", "{if(!@){\0}}", f"{shown(text or '...')}; -> nothing", end)


def _name_of_call(cursor: Cursor) -> str:
    cursor = plain(cursor)
    while cursor.kind == Kind.UNEXPOSED_EXPR:  # Temporaries of a full expression.
        inner = children(cursor)
        if not inner:
            return ""
        cursor = inner[0]
    return cursor.spelling if cursor.kind == Kind.CALL_EXPR else ""


def _has_effect(file: SourceFile, cursor: Cursor) -> bool:
    cursor = plain(cursor)
    if cursor.kind == Kind.BINARY_OPERATOR:
        left, right = children(cursor)[:2]
        return file.operator_between(left, right) == "="
    return cursor.kind in (
        Kind.CALL_EXPR, Kind.COMPOUND_ASSIGNMENT_OPERATOR, Kind.UNARY_OPERATOR,
        Kind.UNEXPOSED_EXPR, Kind.CXX_DELETE_EXPR, Kind.BREAK_STMT, Kind.CONTINUE_STMT,
    )  # fmt: skip
