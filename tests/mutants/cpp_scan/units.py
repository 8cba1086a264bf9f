"""Translation units: how to parse them, and which files they bring."""

import json
import pathlib
import shlex
from collections.abc import Callable, Iterator

from schemata import Change

from .bodies import scan_scope
from .cursors import Cursor, Kind, children, cindex
from .source_file import SourceFile

_OPTIONS = cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD


class Scanner:
    """Reads translation units and collects the changes of files that `wants` accepts."""

    def __init__(self, wants: Callable[[str], bool]) -> None:
        self._wants = wants
        self._wanted: dict[str, bool] = {}
        self.files: dict[str, SourceFile] = {}
        self.complaints: list[str] = []
        self._index = cindex.Index.create()

    def read(self, source: str, arguments: list[str]) -> set[str]:
        """Parses one translation unit. Returns its files, wanted or not.

        Files that an earlier one had are not looked at again.
        """
        unit = self._index.parse(source, arguments, options=_OPTIONS)
        for note in unit.diagnostics:
            # Of clang's own headers, which may be another version's, nothing is asked.
            ours = note.location.file is not None and self._wants(note.location.file.name)
            if ours and note.severity >= cindex.Diagnostic.Error:
                self.complaints.append(
                    f"{note.location.file}:{note.location.line}: {note.spelling}"
                )
        fresh: dict[str, list[Cursor]] = {}
        for cursor in unit.cursor.get_children():
            place = cursor.location.file
            if place is None:
                continue
            name = place.name
            wanted = self._wanted.get(name)
            if wanted is None:
                wanted = self._wanted[name] = self._wants(name)
            if wanted and name not in self.files:
                fresh.setdefault(name, []).append(cursor)
        for name, cursors in fresh.items():
            self.files[name] = _scan(pathlib.Path(name).read_bytes(), cursors)
        return {source} | {include.include.name for include in unit.get_includes()}


def scan_text(text: str, name: str = "snippet.cpp") -> list[Change]:
    """Returns the changes of a text, for tests."""
    unit = cindex.Index.create().parse(
        name, ["-std=c++20", "-w"], unsaved_files=[(name, text)], options=_OPTIONS
    )
    errors = [str(note) for note in unit.diagnostics if note.severity >= cindex.Diagnostic.Error]
    if errors:
        raise ValueError("\n".join(errors))
    return sorted(_scan(text.encode(), children(unit.cursor)).changes)


def _scan(text: bytes, cursors: list[Cursor]) -> SourceFile:
    macros = [
        (cursor.extent.start.offset, cursor.extent.end.offset)
        for cursor in cursors
        if cursor.kind == Kind.MACRO_INSTANTIATION
    ]
    file = SourceFile(text, macros)
    for cursor in cursors:
        if not cursor.kind.is_preprocessing():
            scan_scope(file, cursor)
    return file


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
