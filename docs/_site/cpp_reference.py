"""Writes a page per public header: its declarations as they stand, and their comments.

libclang reads the headers. The tests use it too, and `///` comments need no other format, so this
costs one dependency and this file; Doxygen would add a program, its XML and a converter. Clang's
own headers must be installed (Debian: libclang-common-16-dev); nothing is built.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import clang.cindex as clang

Kind = clang.CursorKind
RECORDS = {Kind.CLASS_DECL, Kind.STRUCT_DECL, Kind.CLASS_TEMPLATE}
FUNCTIONS = {
    Kind.FUNCTION_DECL, Kind.FUNCTION_TEMPLATE, Kind.CXX_METHOD, Kind.CONSTRUCTOR,
}  # fmt: skip
OTHERS = {Kind.TYPE_ALIAS_DECL, Kind.TYPE_ALIAS_TEMPLATE_DECL, Kind.VAR_DECL, "concept"}
CONCEPT = 604
"""CXCursor_ConceptDecl of libclang."""
MACRO = re.compile(r"((?:^///.*\n)+)#define ((TOKENYARD_\w+)(?:\([^)]*\))?)", re.MULTILINE)
HIDDEN = re.compile(r"\b(detail|internal)\b")


@cache
def pages(include: Path) -> dict[str, str]:
    """Returns the pages by uri."""
    headers = sorted(path.relative_to(include) for path in (include / "tokenyard").rglob("*.hpp"))
    headers.sort(key=lambda header: len(header.parts))
    unit = parsed(include, headers)  # All in one, so that what they include is read once.
    cursors: dict[Path, list[clang.Cursor]] = {header: [] for header in headers}
    for cursor in declarations(unit.cursor, include):
        cursors[Path(cursor.location.file.name).relative_to(include)].append(cursor)
    return {
        f"reference/cpp/{header.relative_to('tokenyard').with_suffix('.md')}": page(
            header, (include / header).read_text(encoding="utf-8"), cursors[header]
        )
        for header in headers
    }


def parsed(include: Path, headers: list[Path]) -> clang.TranslationUnit:
    """Returns all headers as one translation unit."""
    text = "".join(f'#include "{header}"\n' for header in headers)
    unit = clang.Index.create().parse(
        "all.hpp",
        # task.hpp includes headers of kernels, in the repository those of src.
        args=[
            "-x",
            "c++",
            "-std=c++20",
            f"-I{include}",
            f"-I{include.parent}/src",
            *clang_headers(),
        ],
        unsaved_files=[("all.hpp", text)],
    )
    errors = [one for one in unit.diagnostics if one.severity >= clang.Diagnostic.Error]
    if errors:
        raise ValueError(
            f"{errors[0].location.file}: {errors[0].spelling}. "
            "Are clang's headers installed (libclang-common-16-dev)?"
        )
    return unit


def kind_of(cursor: clang.Cursor) -> Any:
    """Returns a cursor's kind; these bindings do not know that of a concept."""
    try:
        return cursor.kind
    except ValueError:
        return "concept" if cursor._kind_id == CONCEPT else "unknown"


def clang_headers() -> list[str]:
    """Returns the option that names clang's own headers, which libclang of PyPI does not bring."""
    folders = sorted(Path("/usr/lib").glob("llvm-16/lib/clang/*/include"))
    if folders:
        return ["-isystem", str(folders[-1])]
    try:
        asked = subprocess.run(
            ["clang", "-print-resource-dir"], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        return []
    return ["-isystem", f"{asked.stdout.strip()}/include"]


def page(header: Path, text: str, cursors: list[clang.Cursor]) -> str:
    """Returns the page of one header."""
    title = str(header.relative_to("tokenyard"))
    parts = [f"# {title}", prose(first_comment(text)), code(f'#include "{header}"')]
    for found in MACRO.finditer(text):
        parts += [f"## {found[3]}", code(found[2]), prose(found[1])]
    named: set[str] = set()
    for cursor in cursors:
        parts += declaration(cursor, text, named)
    return "\n\n".join(part for part in parts if part) + "\n"


def declarations(cursor: clang.Cursor, include: Path) -> Iterator[clang.Cursor]:
    """Yields what the headers themselves declare for users, in their order."""
    for child in cursor.get_children():
        file = child.location.file
        if file is None or not file.name.startswith(f"{include}/"):
            continue
        if kind_of(child) == Kind.NAMESPACE:
            if not HIDDEN.search(child.spelling):
                yield from declarations(child, include)
        elif kind_of(child) in RECORDS | {Kind.ENUM_DECL}:
            if child.is_definition():
                yield child
        elif kind_of(child) in FUNCTIONS or kind_of(child) in OTHERS:
            yield child


def declaration(cursor: clang.Cursor, text: str, named: set[str]) -> list[str]:
    """Returns the parts of the page on one declaration of a namespace."""
    name = cursor.spelling
    heading = [] if name in named else [f"## {name}"]  # Overloads share one.
    named.add(name)
    if kind_of(cursor) == Kind.ENUM_DECL:
        values = [child for child in cursor.get_children() if child.spelling]
        values = [child for child in values if kind_of(child) == Kind.ENUM_CONSTANT_DECL]
        rows = [(source(value, text), comment_of(value, text)) for value in values]
        head = code(f"enum class {name}" if cursor.is_scoped_enum() else f"enum {name}")
        return [*heading, head, prose(cursor.raw_comment), table("Value", rows)]
    if kind_of(cursor) in RECORDS:
        return [*heading, *record(cursor, text)]
    return [*heading, code(source(cursor, text) + ";"), prose(cursor.raw_comment)]


def record(cursor: clang.Cursor, text: str, outer: str = "") -> list[str]:
    """Returns the parts on a class: its comment, its fields as a table, then its functions."""
    name = outer + cursor.spelling
    begin = text.encode()[cursor.extent.start.offset : cursor.extent.end.offset].decode()
    parts = [code(cleaned(begin.partition("{")[0]) + ";"), prose(cursor.raw_comment)]
    public = [
        child
        for child in cursor.get_children()
        if child.access_specifier == clang.AccessSpecifier.PUBLIC and child.spelling
    ]
    fields = [child for child in public if kind_of(child) in (Kind.FIELD_DECL, Kind.VAR_DECL)]
    if fields:
        rows = [(source(field, text), comment_of(field, text)) for field in fields]
        rows = [  # Of "int rank, size" the last row is the whole.
            row
            for row, after in zip(rows, [*rows[1:], ("", "")], strict=True)
            if not after[0].startswith(f"{row[0]},")
        ]
        parts.append(table("Field", rows))
    named: set[str] = set()
    for child in public:
        if kind_of(child) in RECORDS and child.is_definition():
            parts += [member(name, child.spelling), *record(child, text, f"{name}::")]
        elif kind_of(child) == Kind.ENUM_DECL:
            inner = declaration(child, text, named)
            parts += [member(name, child.spelling), *inner[1:]]
        elif kind_of(child) in FUNCTIONS and not trivial(child):
            spelling = child.spelling.partition("<")[0]
            if spelling not in named:
                parts.append(member(name, spelling))
            named.add(spelling)
            parts += [code(source(child, text) + ";"), prose(child.raw_comment)]
    return parts


def member(of: str, name: str) -> str:
    """Returns the heading of a member; the page's contents show only its own name."""
    return f'### {of}::{name} {{ data-toc-label="{name}" }}'


def comment_of(cursor: clang.Cursor, text: str) -> str:
    """Returns the comment of a field; clang finds none after a declaration of two lines."""
    if cursor.raw_comment:
        return prose(cursor.raw_comment)
    after = text.encode()[cursor.extent.end.offset :].decode()
    found = re.match(r"[;,]?[ ]*(///<.*(?:\n\s*///<.*)*)", after)
    return prose(found[1]) if found else ""


def trivial(cursor: clang.Cursor) -> bool:
    """Says whether a function is a copy, a move, or private to the implementation."""
    if cursor.spelling == "operator=" or HIDDEN.search(cursor.spelling):
        return True
    return kind_of(cursor) == Kind.CONSTRUCTOR and (
        cursor.is_copy_constructor() or cursor.is_move_constructor()
    )


def source(cursor: clang.Cursor, text: str) -> str:
    """Returns a declaration as it stands, without its body and comments."""
    data = text.encode()
    end = cursor.extent.end.offset
    if kind_of(cursor) in FUNCTIONS:
        bodies = [c for c in cursor.get_children() if kind_of(c) == Kind.COMPOUND_STMT]
        end = min([end, *(body.extent.start.offset for body in bodies)])
    kept = cleaned(data[cursor.extent.start.offset : end].decode())
    if kind_of(cursor) == Kind.FIELD_DECL:  # A struct that is defined with its field.
        kept = re.sub(r"^struct (\w+) \{.*\n?\} ", r"\1 ", kept, flags=re.DOTALL)
    if kind_of(cursor) == Kind.CONSTRUCTOR:
        kept = re.sub(r"\)\s*:(?!:).*", ")", kept, flags=re.DOTALL)
    return kept


def cleaned(declared: str) -> str:
    """Returns a declaration without comments, and with its margin removed."""
    lines = [re.sub(r"\s*//.*", "", line) for line in declared.split("\n")]
    lines = [line for line in lines if line.strip()] or [""]
    margin = min((len(line) - len(line.lstrip()) for line in lines[1:]), default=0)
    wanted = 0 if lines[0].startswith("template") else 4
    shift = max(margin - wanted, 0)
    return "\n".join([lines[0], *(line[shift:] for line in lines[1:])]).rstrip(" ;")


def first_comment(text: str) -> str:
    """Returns the comment with which the header begins."""
    found = re.match(r"(?://.*\n)+", text)
    return found[0] if found else ""


def prose(comment: str | None) -> str:
    """Returns a comment as Markdown."""
    if not comment:
        return ""
    lines = [re.sub(r"^\s*///?<?\s?", "", line) for line in comment.split("\n")]
    text = "\n".join(lines).strip()
    return "".join(
        piece if code_of else re.sub(r"([*_\[\]])", r"\\\1", piece).replace("<", "&lt;")
        for piece, code_of in _pieces(text)
    )


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Yields the parts of a comment, and whether each is code: in backticks, or indented."""
    for part in re.split(r"(`[^`]*`|^ {4}.*$)", text, flags=re.MULTILINE):
        yield part, part.startswith(("`", "    "))


def code(text: str) -> str:
    return f"```cpp\n{text}\n```"


def table(what: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"| {what} | |", "|---|---|"]
    for declared, comment in rows:
        flat = " ".join(declared.split()).replace("|", "\\|")
        lines.append(f"| `{flat}` | {' '.join(comment.split()).replace('|', chr(92) + '|')} |")
    return "\n".join(lines)
