"""Finds the mutants of C++ files, with libclang.

Only bodies of functions have mutants. Constants of the compiler (constexpr variables, template
arguments, case labels, static_assert, `if constexpr`) and text of macros have none.
"""

import bisect
import itertools
import json
import pathlib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator

import clang.cindex as cindex
from clang.cindex import Cursor, TypeKind
from clang.cindex import CursorKind as Kind
from schemata import Change, one_line, shown

# Kinds that the library knows and its Python side does not, such as concepts.
for number in (*range(1, 320), *range(600, 610)):
    try:
        Kind.from_id(number)
    except ValueError:
        Kind(number)

LONGEST = 500  # Bytes of an expression that is written twice.

COMPARISONS = {"==": ">=", "!=": "<", "<": "<=", "<=": "<", ">": ">=", ">=": ">"}
INTEGERS = (
    TypeKind.CHAR_U, TypeKind.UCHAR, TypeKind.USHORT, TypeKind.UINT, TypeKind.ULONG,
    TypeKind.ULONGLONG, TypeKind.CHAR_S, TypeKind.SCHAR, TypeKind.SHORT, TypeKind.INT,
    TypeKind.LONG, TypeKind.LONGLONG,
)  # fmt: skip
FLOATS = (TypeKind.FLOAT, TypeKind.DOUBLE)
DEPENDENT = (TypeKind.DEPENDENT, TypeKind.UNEXPOSED)
EPOCHS = re.compile(r"(^|_)(epoch|parity|sequence|generation|ballot|term|run|batch)_?$")
CHECKS = re.compile(r"^(require|check|expect|ensure|verify|validate|refuse)(_|$)")
RELEASES = re.compile(
    r"^(close|release|free|reset|unlock|erase|clear|munmap|unmap|unlink|cancel|shutdown|detach|stop"
    r"|join|remove|deallocate|forget|give_back|disconnect|destroy|end|drop|return_\w+|free_\w+"
    r"|close_\w+|release_\w+|remove_\w+|\w+_free)$"
)
SYMMETRIC = {"min", "max", "swap", "gcd", "lcm", "iter_swap"}
FUNCTIONS = (
    Kind.FUNCTION_DECL, Kind.CXX_METHOD, Kind.CONSTRUCTOR, Kind.DESTRUCTOR,
    Kind.CONVERSION_FUNCTION, Kind.FUNCTION_TEMPLATE,
)  # fmt: skip
SCOPES = (
    Kind.NAMESPACE, Kind.CLASS_DECL, Kind.STRUCT_DECL, Kind.UNION_DECL, Kind.CLASS_TEMPLATE,
    Kind.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION, Kind.LINKAGE_SPEC, Kind.UNEXPOSED_DECL,
)  # fmt: skip
LOOPS = (Kind.FOR_STMT, Kind.WHILE_STMT, Kind.DO_STMT, Kind.CXX_FOR_RANGE_STMT)
NOT_RUN = (
    Kind.STATIC_ASSERT, Kind.TYPE_REF, Kind.TEMPLATE_REF, Kind.NAMESPACE_REF, Kind.DECL_REF_EXPR,
    Kind.CXX_UNARY_EXPR, Kind.TYPE_ALIAS_DECL, Kind.TYPEDEF_DECL,
    Kind.ENUM_DECL,
    Kind.CXX_THROW_EXPR,  # Its message is text for a reader.
)  # fmt: skip


class _File:
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


def _is_expression(cursor: Cursor) -> bool:
    return cursor.kind.is_expression()


def _plain(cursor: Cursor) -> Cursor:
    """Returns the cursor within implicit casts, which have its extent."""
    while cursor.kind == Kind.UNEXPOSED_EXPR:
        inner = list(cursor.get_children())
        if len(inner) != 1 or inner[0].extent != cursor.extent:
            break
        cursor = inner[0]
    return cursor


def _operator(file: _File, left: Cursor, right: Cursor) -> str:
    between = file.text[left.extent.end.offset : right.extent.start.offset]
    return re.sub(rb"//[^\n]*|/\*.*?\*/|\s", b"", between).decode(errors="replace")


def _may_be_ordered(cursor: Cursor) -> bool:
    kind = cursor.type.get_canonical().kind
    return kind in INTEGERS or kind in FLOATS or kind in DEPENDENT


class Scanner:
    """Reads translation units and collects the changes of files that `wants` accepts."""

    def __init__(self, wants: Callable[[str], bool]) -> None:
        self._wants = wants
        self._wanted: dict[str, bool] = {}
        self.files: dict[str, _File] = {}
        self.complaints: list[str] = []
        self._index = cindex.Index.create()

    def read(self, source: str, arguments: list[str]) -> None:
        """Parses one translation unit. Files that an earlier one had are not looked at again."""
        unit = self._index.parse(
            source, arguments, options=cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD
        )
        for note in unit.diagnostics:
            # Of clang's own headers, which may be another version's, nothing is asked.
            ours = note.location.file is not None and self._wants(note.location.file.name)
            if ours and note.severity >= cindex.Diagnostic.Error:
                self.complaints.append(
                    f"{note.location.file}:{note.location.line}: {note.spelling}"
                )
        fresh: dict[str, list[tuple[int, int]]] = {}
        tops = []
        for cursor in unit.cursor.get_children():
            place = cursor.location.file
            if place is None:
                continue
            name = place.name
            wanted = self._wanted.get(name)
            if wanted is None:
                wanted = self._wanted[name] = self._wants(name)
            if not wanted or name in self.files:
                continue
            macros = fresh.setdefault(name, [])
            if cursor.kind == Kind.MACRO_INSTANTIATION:
                macros.append((cursor.extent.start.offset, cursor.extent.end.offset))
            elif not cursor.kind.is_preprocessing():
                tops.append((name, cursor))
        files = {
            name: _File(pathlib.Path(name).read_bytes(), macros) for name, macros in fresh.items()
        }
        for name, cursor in tops:
            _scope(files[name], cursor)
        self.files.update(files)


def _scope(file: _File, cursor: Cursor) -> None:
    if cursor.kind in FUNCTIONS:
        _function(file, cursor)
    elif cursor.kind in SCOPES:
        for child in cursor.get_children():
            _scope(file, child)


def _function(file: _File, cursor: Cursor) -> None:
    # A function that a macro writes spans the macro's invocation.
    start, end = cursor.extent.start.offset, cursor.extent.end.offset
    if file.from_macro(start, end) or not cursor.is_definition():
        return
    body = None
    for child in cursor.get_children():
        if child.kind == Kind.COMPOUND_STMT:
            body = child
    # A defaulted function has a body that nobody wrote.
    if (
        body is None
        or not file.of(body).startswith(b"{")
        or b"consteval" in file.text[start : body.extent.start.offset]
    ):
        return
    _walk(file, body, _Within(_early_return(file, cursor, body)))


def _early_return(file: _File, cursor: Cursor, body: Cursor) -> str:
    """Returns the statement that leaves the function, or nothing where none is known."""
    word = "co_return" if re.search(rb"\bco_(await|return|yield)\b", file.of(body)) else "return"
    if (
        cursor.kind in (Kind.CONSTRUCTOR, Kind.DESTRUCTOR)
        or cursor.result_type.kind == TypeKind.VOID
    ):
        return f"{word};"
    result = cursor.result_type
    if result.kind in (TypeKind.LVALUEREFERENCE, TypeKind.RVALUEREFERENCE):
        return ""
    if re.search(r"\bauto\b", result.spelling):
        return ""
    # Only the text of a coroutine tells whether it returns a value.
    if word == "co_return" and not re.search(rb"\bco_return\s+[^;\s]", file.of(body)):
        return "co_return;"
    return f"{word} {{}};"


class _Within:
    """The surroundings of a statement."""

    def __init__(self, leave: str, failing: bool = False) -> None:
        self.leave = leave
        self.failing = failing

    def on_failure(self) -> "_Within":
        """Returns the same, on a path that ends in a failure."""
        return _Within(self.leave, True)


def _children(cursor: Cursor) -> list[Cursor]:
    return list(cursor.get_children())


def _walk(file: _File, cursor: Cursor, within: _Within) -> None:
    """Collects what can be changed at and below a cursor of a function's body."""
    kind = cursor.kind
    if kind == Kind.MEMBER_REF_EXPR:
        _epoch(file, cursor, None)
        for child in _children(cursor)[:1]:
            if _is_expression(child) and child.extent.start.offset == cursor.extent.start.offset:
                _walk(file, child, within)
        return
    if kind in NOT_RUN:
        return
    if kind == Kind.LAMBDA_EXPR:
        for child in _children(cursor):
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
    elif kind in LOOPS:
        _loop(file, cursor, within)
        return
    elif kind == Kind.CASE_STMT:
        for child in _children(cursor)[1:]:
            _walk(file, child, within)
        return
    elif kind == Kind.CXX_CATCH_STMT:
        within = within.on_failure()
    elif kind in FUNCTIONS or kind in SCOPES:
        _scope(file, cursor)
        return
    elif kind == Kind.BINARY_OPERATOR:
        _binary(file, cursor)
    elif kind == Kind.INTEGER_LITERAL:
        _integer(file, cursor)
        return
    elif kind == Kind.CALL_EXPR:
        if cursor.spelling == "format":
            return
        _call(file, cursor)
    elif kind == Kind.CONDITIONAL_OPERATOR:
        condition = _children(cursor)[0]
        _invert(file, condition)
    elif kind == Kind.UNEXPOSED_EXPR:
        inner = _plain(cursor)
        if inner.kind in (Kind.DECL_REF_EXPR, Kind.MEMBER_REF_EXPR):
            _epoch(file, inner, cursor)
    for child in _children(cursor):
        _walk(file, child, within)


def _variable(file: _File, cursor: Cursor, within: _Within) -> None:
    """Looks at a variable's first value, not at its type."""
    text = file.of(cursor)
    if re.match(rb"(static\s+|inline\s+)*constexpr\b", text):
        return
    arrays = (TypeKind.CONSTANTARRAY, TypeKind.DEPENDENTSIZEDARRAY)
    for child in _children(cursor):
        after = child.extent.start.offset >= cursor.location.offset
        if not after or not _is_expression(child):
            continue
        if cursor.type.kind in arrays and child.kind != Kind.INIT_LIST_EXPR:
            continue
        _walk(file, child, within)


def _statement_end(file: _File, cursor: Cursor) -> int:
    """Returns where an expression's statement ends, after its semicolon; 0 where there is none."""
    match = re.compile(rb"\s*;").match(file.text, cursor.extent.end.offset)
    return match.end() if match else 0


def _name_of_call(cursor: Cursor) -> str:
    cursor = _plain(cursor)
    while cursor.kind == Kind.UNEXPOSED_EXPR:  # Temporaries of a full expression.
        children = _children(cursor)
        if not children:
            return ""
        cursor = children[0]
    return cursor.spelling if cursor.kind == Kind.CALL_EXPR else ""


def _has_effect(cursor: Cursor, file: _File) -> bool:
    cursor = _plain(cursor)
    kind = cursor.kind
    if kind == Kind.BINARY_OPERATOR:
        left, right = _children(cursor)[:2]
        return _operator(file, left, right) == "="
    return kind in (
        Kind.CALL_EXPR, Kind.COMPOUND_ASSIGNMENT_OPERATOR, Kind.UNARY_OPERATOR,
        Kind.UNEXPOSED_EXPR, Kind.CXX_DELETE_EXPR, Kind.BREAK_STMT, Kind.CONTINUE_STMT,
    )  # fmt: skip


def _statement(file: _File, cursor: Cursor, within: _Within) -> None:
    """Leaves a statement out."""
    jump = cursor.kind in (Kind.BREAK_STMT, Kind.CONTINUE_STMT)
    if not jump and not (_is_expression(cursor) and _has_effect(cursor, file)):
        return
    end = _statement_end(file, cursor)
    if not end:
        return
    name = _name_of_call(cursor)
    operator = "statement"
    if CHECKS.match(name):
        operator = "check"
    elif (
        RELEASES.match(name)
        or _plain(cursor).kind == Kind.CXX_DELETE_EXPR
        or (within.failing and name)
    ):
        operator = "release"
    text = one_line(file.of(cursor))
    file.add(cursor, operator, "around", "{if(!@){\0}}", f"{shown(text or '...')}; -> nothing", end)


def _compound(file: _File, cursor: Cursor, within: _Within) -> None:
    for number, child in enumerate(_children(cursor)):
        _statement(file, child, within)
        if number > 0 and within.leave and child.kind not in (Kind.RETURN_STMT, Kind.LABEL_STMT):
            end = child.extent.end.offset
            if child.kind not in (Kind.CASE_STMT, Kind.DEFAULT_STMT, Kind.NULL_STMT):
                text = shown((one_line(file.of(child)) or "").split("{")[0], 40)
                file.add(child, "return", "around", f"if(@){within.leave} \0",
                         f"{within.leave[:-1]} before {text}", end)  # fmt: skip
        _walk(file, child, within)


def _invert(file: _File, cursor: Cursor) -> None:
    text = shown(one_line(file.of(cursor)) or "...")
    file.add(cursor, "condition", "around", "(static_cast<bool>(\0)!=@)", f"{text} -> inverted")


def _fails(file: _File, body: Cursor) -> bool:
    return bool(re.search(rb"\bthrow\b|\brethrow\w*\b", file.of(body)))


def _if(file: _File, cursor: Cursor, within: _Within) -> None:
    children = _children(cursor)
    words = file.text[cursor.extent.start.offset : children[0].extent.start.offset]
    if b"constexpr" in words or b"consteval" in words:
        for child in children:
            if not _is_expression(child):
                _branch(file, child, within)
        return
    condition, rest = None, children
    if _is_expression(children[0]) and children[0].kind != Kind.DECL_STMT:
        condition, rest = children[0], children[1:]
    elif children[0].kind == Kind.DECL_STMT and len(children) > 2 and _is_expression(children[1]):
        condition, rest = children[1], children[2:]
        _walk(file, children[0], within)
    elif children[0].kind == Kind.VAR_DECL:
        _walk(file, children[0], within)
        rest = [child for child in children[1:] if not _is_expression(child) or
                child.extent.start.offset > children[0].extent.end.offset]  # fmt: skip
    if condition is not None:
        _invert(file, condition)
        text = shown(one_line(file.of(condition)) or "...")
        if rest and re.match(rb"\{?\s*throw\b", file.of(rest[0])):
            file.add(
                condition, "check", "around", "(!@&&(\0))", f"if ({text}) throw -> not checked"
            )
        else:
            file.add(condition, "condition", "around", "(@||(\0))", f"{text} -> true")
        _walk(file, condition, within)
    for number, branch in enumerate(rest):
        failing = number == 0 and _fails(file, branch)
        _branch(file, branch, within.on_failure() if failing else within)


def _branch(file: _File, cursor: Cursor, within: _Within) -> None:
    """Looks at a statement that may stand without braces."""
    if cursor.kind != Kind.COMPOUND_STMT:
        _statement(file, cursor, within)
    _walk(file, cursor, within)


def _loop(file: _File, cursor: Cursor, within: _Within) -> None:
    children = _children(cursor)
    body = children[0] if cursor.kind == Kind.DO_STMT else children[-1]
    for child in children:
        if child != body:
            _walk(file, child, within)
            if cursor.kind in (Kind.FOR_STMT, Kind.WHILE_STMT):
                _bound(file, child)
    _branch(file, body, within)
    if cursor.kind == Kind.DO_STMT:
        return
    end = body.extent.end.offset if body.kind == Kind.COMPOUND_STMT else _statement_end(file, body)
    if end and (body.kind == Kind.COMPOUND_STMT or _is_expression(body)):
        text = shown((one_line(file.of(cursor)) or "").split("{")[0])
        file.add(body, "bound", "around", "{\0 if(@)break;}", f"{text} -> its first turn only", end)


def _bound(file: _File, cursor: Cursor) -> None:
    cursor = _plain(cursor)
    if cursor.kind != Kind.BINARY_OPERATOR:
        return
    left, right = _children(cursor)[:2]
    operator = _operator(file, left, right)
    if operator in ("<", "<=") and _may_be_ordered(left):
        text = b"(" + file.of(left) + b")+1" + operator.encode() + b"(" + file.of(right) + b")"
        file.choice(cursor, "bound", text)


def _binary(file: _File, cursor: Cursor) -> None:
    children = _children(cursor)
    if len(children) != 2:
        return
    left, right = children
    operator = _operator(file, left, right)
    a, b = file.of(left), file.of(right)
    if operator in ("&&", "||"):
        file.choice(cursor, "term", b"static_cast<bool>(" + a + b")",
                    f"{operator} {shown(one_line(b) or '...')} -> left out")  # fmt: skip
        file.choice(cursor, "term", b"static_cast<bool>(" + b + b")",
                    f"{shown(one_line(a) or '...')} {operator} -> left out")  # fmt: skip
    elif operator in COMPARISONS and _may_be_ordered(left) and _may_be_ordered(right):
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


_NUMBER = re.compile(r"(0[xX][0-9a-fA-F']+|[0-9][0-9']*)([uUlLzZ]*)$")


def _integer(file: _File, cursor: Cursor) -> None:
    match = _NUMBER.match(file.of(cursor).decode(errors="replace"))
    if not match:
        return
    digits, suffix = match[1].replace("'", ""), match[2]
    value = int(digits, 8 if re.fullmatch("0[0-7]+", digits) else 0)
    file.choice(cursor, "constant", f"{value + 1}{suffix}".encode())
    if value > 0:
        file.choice(cursor, "constant", f"{value - 1}{suffix}".encode())


_ITERATORS = re.compile(rb"\bc?(begin|end)\(")


def _bare(cursor: Cursor) -> str:
    kind = cursor.type.get_canonical()
    if kind.kind in (TypeKind.LVALUEREFERENCE, TypeKind.RVALUEREFERENCE):
        kind = kind.get_pointee()
    return kind.spelling.replace("const ", "")


def _call(file: _File, cursor: Cursor) -> None:
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
                    f"{cursor.spelling}: {shown(one_line(a) or '...', 28)}, "
                    f"{shown(one_line(b) or '...', 28)} -> swapped")  # fmt: skip


def _epoch(file: _File, cursor: Cursor, cast: Cursor | None) -> None:
    """Takes the word of the call before or after. Only where the word is read."""
    if cast is None or not EPOCHS.search(cursor.spelling):
        return
    if cursor.type.get_canonical().kind not in INTEGERS:
        return
    text = file.of(cursor)
    kind = b"static_cast<std::remove_cvref_t<decltype(" + text + b")>>"
    if "parity" in cursor.spelling:
        file.choice(cursor, "epoch", kind + b"((" + text + b")^1)", f"{text.decode()} -> the other")
        return
    for change in (b"-1", b"+1"):
        file.choice(cursor, "epoch", kind + b"((" + text + b")" + change + b")",
                    f"{text.decode()} -> {text.decode()} {change.decode()}")  # fmt: skip


# ---- translation units --------------------------------------------------------------------------


def resource_folder() -> str:
    """Returns the newest folder of clang's own headers; libclang from PyPI brings none."""
    found = sorted(pathlib.Path("/usr/lib").glob("llvm-*/lib/clang/*/include/stddef.h"))
    if not found:
        raise SystemExit("clang's headers are missing: apt-get install libclang-common-16-dev")
    return str(found[-1].parents[1])


def units(compile_commands: pathlib.Path) -> Iterator[tuple[str, list[str]]]:
    """Yields each source of a compile_commands.json once, with arguments that libclang takes."""
    seen = set()
    for entry in json.loads(compile_commands.read_text()):
        source = entry["file"]
        if source in seen:
            continue
        seen.add(source)
        words = shlex.split(entry["command"])
        kept = []
        for at, word in enumerate(words):
            if word == "-isystem":
                kept += [word, words[at + 1]]
            elif word.startswith(("-I", "-D", "-std=", "-m")):
                kept.append(word)
        # As src/net/CMakeLists.txt tells clang.
        kept += ["-DASIO_HAS_CO_AWAIT=1", "-DASIO_HAS_STD_COROUTINE=1"]
        yield source, [*kept, "-w", "-ferror-limit=0", "-resource-dir", resource_folder()]


def scan_text(text: str, name: str = "snippet.cpp") -> list[Change]:
    """Returns the changes of a text, for tests."""
    index = cindex.Index.create()
    unit = index.parse(
        name, ["-std=c++20", "-w"], unsaved_files=[(name, text)],
        options=cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD,
    )  # fmt: skip
    errors = [str(note) for note in unit.diagnostics if note.severity >= cindex.Diagnostic.Error]
    if errors:
        raise ValueError("\n".join(errors))
    cursors = _children(unit.cursor)
    macros = [
        (cursor.extent.start.offset, cursor.extent.end.offset)
        for cursor in cursors
        if cursor.kind == Kind.MACRO_INSTANTIATION
    ]
    file = _File(text.encode(), macros)
    for cursor in cursors:
        if not cursor.kind.is_preprocessing():
            _scope(file, cursor)
    return sorted(file.changes)


def mentioned(source: str) -> Iterable[str]:
    """Returns the files that a batch includes, or the source itself."""
    if not source.endswith(".cxx"):
        return [source]
    return re.findall(r'#include "([^"]+)"', pathlib.Path(source).read_text())
