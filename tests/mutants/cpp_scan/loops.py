"""Loops end one turn early, or after their first turn."""

from schemata import one_line, shown

from .comparisons import may_be_ordered
from .cursors import Cursor, Kind, children, is_expression, plain
from .source_file import SourceFile

LOOPS = (Kind.FOR_STMT, Kind.WHILE_STMT, Kind.DO_STMT, Kind.CXX_FOR_RANGE_STMT)


def one_turn_less(file: SourceFile, condition: Cursor) -> None:
    """Ends a loop one turn early, by its condition."""
    condition = plain(condition)
    if condition.kind != Kind.BINARY_OPERATOR:
        return
    left, right = children(condition)[:2]
    operator = file.operator_between(left, right)
    if operator in ("<", "<=") and may_be_ordered(left):
        text = b"(" + file.of(left) + b")+1" + operator.encode() + b"(" + file.of(right) + b")"
        file.choice(condition, "bound", text)


def first_turn_only(file: SourceFile, loop: Cursor, body: Cursor) -> None:
    """Ends a loop after its first turn."""
    block = body.kind == Kind.COMPOUND_STMT
    end = body.extent.end.offset if block else file.statement_end(body)
    if end and (block or is_expression(body)):
        text = shown((one_line(file.of(loop)) or "").split("{")[0])
        file.add(body, "bound", "around", "{\0 if(@)break;}", f"{text} -> its first turn only", end)
