"""The table of errors in jobs.md names every class with all its fields, in Python and in C++."""

from __future__ import annotations

import re
from typing import NamedTuple, get_type_hints

import pytest
from pages import text_of
from programs import ROOT

import tokenyard
from tokenyard import errors

HEADERS = ("error.hpp", "megakernel/error.hpp", "low_latency.hpp")
IN_CPP = {"asked": "what_asked"}
"""Fields that are called otherwise in C++."""


class Row(NamedTuple):
    also: str
    fields: list[str]
    """With those of the class that the cell refers to."""


def table() -> dict[str, Row]:
    section = text_of("jobs.md").split("\n## Errors\n")[1]
    rows: dict[str, Row] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 5 or not cells[0].startswith("`"):
            continue
        name, also, _, fields, _ = cells
        base = re.match(r"those of `(\w+)`(?:, )?", fields)
        inherited = rows[base[1]].fields if base else []
        own = re.findall(r"`(\w+)`", fields[base.end() :] if base else fields)
        rows[name.strip("`")] = Row(also.strip("`"), [*inherited, *own])
    return rows


TABLE = table()


def subclasses(kind: type) -> set[type]:
    return {kind}.union(*(subclasses(sub) for sub in kind.__subclasses__()))


CLASSES = {
    kind.__name__: kind
    for kind in subclasses(tokenyard.Error) - {tokenyard.Error}
    if kind.__module__.startswith("tokenyard.")
}


def test_every_class_has_a_row() -> None:
    assert {*TABLE} == {*CLASSES}


@pytest.mark.parametrize("name", TABLE)
def test_a_row_has_the_fields_and_the_base_of_its_class(name: str) -> None:
    names = {**vars(errors), **vars(tokenyard), "LowLatencyReceived": tokenyard.LowLatencyReceived}
    assert set(TABLE[name].fields) == {*get_type_hints(CLASSES[name], names)}
    if TABLE[name].also:
        assert TABLE[name].also in {base.__name__ for base in CLASSES[name].__mro__[1:]}
    else:
        assert CLASSES[name].__mro__[1:] == tokenyard.Error.__mro__


def declared_in_cpp() -> dict[str, str]:
    """Returns the body of every error class of the public headers, with those of its bases."""
    texts = [(ROOT / "include" / "tokenyard" / name).read_text("utf-8") for name in HEADERS]
    found = re.findall(r"^class (\w+) : public (\w+) \{\n(.*?)^\};", "\n".join(texts), re.M | re.S)
    bodies: dict[str, str] = {}
    for name, base, body in found:
        bodies[name] = body + bodies.get(base, "")
    return bodies


def test_classes_and_fields_are_those_of_cpp() -> None:
    bodies = declared_in_cpp()
    assert {*bodies} - {"Error"} == {*TABLE} - {"ProcessDied"}
    facts = (ROOT / "include/tokenyard/error.hpp").read_text("utf-8").split("struct WaitFacts {")[1]
    for name, body in bodies.items():
        members = body + (facts.split("};")[0] if "WaitFacts facts;" in body else "")
        for field in TABLE[name].fields if name in TABLE else []:
            assert re.search(rf"\b{IN_CPP.get(field, field)}\b\s*[;,=]", members), (name, field)


def test_fields_are_those_that_the_bindings_set() -> None:
    text = (ROOT / "python/bindings/errors.cpp").read_text("utf-8")
    _, of_waits, translations = re.split(r"void set_wait_error|void translate", text, maxsplit=2)
    waits = re.findall(r'"(\w+)"_a', of_waits)
    for call, name, rest in re.findall(r'(set_\w+)\("(\w+)", error(.*?)\);', translations, re.S):
        if name == "Error":
            continue
        told = re.findall(r'"(\w+)"_a', rest) + (waits if call == "set_wait_error" else [])
        assert set(told) == set(TABLE[name].fields), name


def test_fields_of_a_wait_are_explained() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|[^|]*\|$", text_of("jobs.md"), re.MULTILINE)
    explained = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert set(TABLE["PeerTimeout"].fields) <= explained
