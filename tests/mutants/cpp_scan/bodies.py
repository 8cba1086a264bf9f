"""Walks the bodies of functions, and asks each operator about what it may change."""

import dataclasses
import re

from . import arguments, comparisons, conditions, early_return, epochs, loops, numbers, statements
from .cursors import Cursor, Kind, TypeKind, children, is_expression, plain
from .source_file import SourceFile

FUNCTIONS = (
    Kind.FUNCTION_DECL, Kind.CXX_METHOD, Kind.CONSTRUCTOR, Kind.DESTRUCTOR,
    Kind.CONVERSION_FUNCTION, Kind.FUNCTION_TEMPLATE,
)  # fmt: skip
SCOPES = (
    Kind.NAMESPACE, Kind.CLASS_DECL, Kind.STRUCT_DECL, Kind.UNION_DECL, Kind.CLASS_TEMPLATE,
    Kind.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION, Kind.LINKAGE_SPEC, Kind.UNEXPOSED_DECL,
)  # fmt: skip
NOT_RUN = (
    Kind.STATIC_ASSERT, Kind.TYPE_REF, Kind.TEMPLATE_REF, Kind.NAMESPACE_REF, Kind.DECL_REF_EXPR,
    Kind.CXX_UNARY_EXPR, Kind.TYPE_ALIAS_DECL, Kind.TYPEDEF_DECL,
    Kind.ENUM_DECL,
    Kind.CXX_THROW_EXPR,  # Its message is text for a reader.
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Within:
    """The surroundings of a statement."""

    leave: str
    """The statement that leaves the function; empty where none is known."""
    failing: bool = False
    """Whether its path ends in a failure."""

    def on_failure(self) -> "_Within":
        return dataclasses.replace(self, failing=True)


def scan_scope(file: SourceFile, cursor: Cursor) -> None:
    """Collects the changes of the functions at and below a declaration."""
    if cursor.kind in FUNCTIONS:
        _function(file, cursor)
    elif cursor.kind in SCOPES:
        for child in children(cursor):
            scan_scope(file, child)


def _function(file: SourceFile, cursor: Cursor) -> None:
    # A function that a macro writes spans the macro's invocation.
    start, end = cursor.extent.start.offset, cursor.extent.end.offset
    if file.from_macro(start, end) or not cursor.is_definition():
        return
    body = None
    for child in children(cursor):
        if child.kind == Kind.COMPOUND_STMT:
            body = child
    # A defaulted function has a body that nobody wrote.
    if (
        body is None
        or not file.of(body).startswith(b"{")
        or b"consteval" in file.text[start : body.extent.start.offset]
    ):
        return
    _walk(file, body, _Within(early_return.leave_of(file, cursor, body)))


def _walk(file: SourceFile, cursor: Cursor, within: _Within) -> None:
    """Collects what can be changed at and below a cursor of a function's body."""
    kind = cursor.kind
    if kind == Kind.MEMBER_REF_EXPR:
        for child in children(cursor)[:1]:
            if is_expression(child) and child.extent.start.offset == cursor.extent.start.offset:
                _walk(file, child, within)
        return
    if kind in NOT_RUN:
        return
    if kind == Kind.LAMBDA_EXPR:
        for child in children(cursor):
            if child.kind == Kind.COMPOUND_STMT:
                _walk(file, child, _Within(""))
        return
    if kind == Kind.VAR_DECL:
        _variable(file, cursor, within)
        return
    if kind == Kind.DECL_STMT:
        if re.match(rb"(static\s+)?constexpr\b", file.of(cursor)):
            return
    elif kind == Kind.COMPOUND_STMT:
        _compound(file, cursor, within)
        return
    elif kind == Kind.IF_STMT:
        _if(file, cursor, within)
        return
    elif kind in loops.LOOPS:
        _loop(file, cursor, within)
        return
    elif kind == Kind.CASE_STMT:
        for child in children(cursor)[1:]:
            _walk(file, child, within)
        return
    elif kind == Kind.CXX_CATCH_STMT:
        within = within.on_failure()
    elif kind in FUNCTIONS or kind in SCOPES:
        scan_scope(file, cursor)
        return
    elif kind == Kind.BINARY_OPERATOR:
        comparisons.of_binary(file, cursor)
    elif kind == Kind.INTEGER_LITERAL:
        numbers.of_integer(file, cursor)
        return
    elif kind == Kind.CALL_EXPR:
        if cursor.spelling == "format":
            return
        arguments.of_call(file, cursor)
    elif kind == Kind.CONDITIONAL_OPERATOR:
        conditions.invert(file, children(cursor)[0])
    elif kind == Kind.UNEXPOSED_EXPR:
        inner = plain(cursor)
        if inner.kind in (Kind.DECL_REF_EXPR, Kind.MEMBER_REF_EXPR):
            epochs.of_name(file, inner)  # The implicit cast shows that it is read.
    for child in children(cursor):
        _walk(file, child, within)


def _variable(file: SourceFile, cursor: Cursor, within: _Within) -> None:
    """Looks at a variable's first value, not at its type."""
    if re.match(rb"(static\s+|inline\s+)*constexpr\b", file.of(cursor)):
        return
    arrays = (TypeKind.CONSTANTARRAY, TypeKind.DEPENDENTSIZEDARRAY)
    for child in children(cursor):
        after = child.extent.start.offset >= cursor.location.offset
        if not after or not is_expression(child):
            continue
        if cursor.type.kind in arrays and child.kind != Kind.INIT_LIST_EXPR:
            continue
        _walk(file, child, within)


def _compound(file: SourceFile, cursor: Cursor, within: _Within) -> None:
    for place, child in enumerate(children(cursor)):
        statements.leave_out(file, child, within.failing)
        if place > 0:
            early_return.before(file, child, within.leave)
        _walk(file, child, within)


def _if(file: SourceFile, cursor: Cursor, within: _Within) -> None:
    parts = children(cursor)
    words = file.text[cursor.extent.start.offset : parts[0].extent.start.offset]
    if b"constexpr" in words or b"consteval" in words:
        for part in parts:
            if not is_expression(part):
                _branch(file, part, within)
        return
    condition, rest = None, parts
    if is_expression(parts[0]) and parts[0].kind != Kind.DECL_STMT:
        condition, rest = parts[0], parts[1:]
    elif parts[0].kind == Kind.DECL_STMT and len(parts) > 2 and is_expression(parts[1]):
        condition, rest = parts[1], parts[2:]
        _walk(file, parts[0], within)
    elif parts[0].kind == Kind.VAR_DECL:
        _walk(file, parts[0], within)
        rest = [part for part in parts[1:] if not is_expression(part) or
                part.extent.start.offset > parts[0].extent.end.offset]  # fmt: skip
    if condition is not None:
        conditions.of_if(file, condition, rest[0] if rest else None)
        _walk(file, condition, within)
    for place, branch in enumerate(rest):
        failing = place == 0 and re.search(rb"\bthrow\b|\brethrow\w*\b", file.of(branch))
        _branch(file, branch, within.on_failure() if failing else within)


def _branch(file: SourceFile, cursor: Cursor, within: _Within) -> None:
    """Looks at a statement that may stand without braces."""
    if cursor.kind != Kind.COMPOUND_STMT:
        statements.leave_out(file, cursor, within.failing)
    _walk(file, cursor, within)


def _loop(file: SourceFile, cursor: Cursor, within: _Within) -> None:
    parts = children(cursor)
    body = parts[0] if cursor.kind == Kind.DO_STMT else parts[-1]
    for part in parts:
        if part != body:
            _walk(file, part, within)
            if cursor.kind in (Kind.FOR_STMT, Kind.WHILE_STMT):
                loops.one_turn_less(file, part)
    _branch(file, body, within)
    if cursor.kind != Kind.DO_STMT:
        loops.first_turn_only(file, cursor, body)
