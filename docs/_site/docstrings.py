"""Turns docstrings into Markdown before mkdocstrings renders them.

The package's docstrings describe several arguments in one line ("rank, size: ..."), errors with a
condition, and sometimes say "As `dispatch`." griffe's parser of sections refuses those, and their
types stand in the signature already, so a section becomes a plain list here.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):\n((?:(?: {4}.*)?\n?)*)", re.MULTILINE)
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
NAMES = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)", re.DOTALL)


def markdown(text: str) -> str:
    """Returns a docstring with its sections as lists and its examples as code."""
    text = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
    return SECTION.sub(_section, text)


def _section(found: re.Match[str]) -> str:
    title = "Arguments" if found[1] == "Args" else found[1]
    return f"**{title}**\n\n{_items(found[2])}\n"


def _items(body: str) -> str:
    """Returns the items of a section as a list; those below one of them as its own list."""
    items: list[str] = []
    for line in body.split("\n"):
        deeper, words = line.startswith("     "), line.strip()
        if deeper and words.startswith("- "):
            items[-1] += f"\n    {words}"
        elif deeper or (words and items and items[-1].endswith(",")):  # Names may take two lines.
            items[-1] += f" {words}"
        elif words:
            items.append(words)
    return "\n".join(f"- {_item(item)}" for item in items) + "\n"


def _item(text: str) -> str:
    found = NAMES.fullmatch(text)
    if not found:
        return text
    return ", ".join(f"`{name}`" for name in found[1].split(", ")) + f": {found[2]}"


class Docstrings(griffe.Extension):
    """Rewrites the docstrings of a loaded package."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        _rewrite(pkg)


def _rewrite(thing: griffe.Object) -> None:
    if thing.docstring:
        thing.docstring.value = markdown(thing.docstring.value)
    for member in thing.members.values():
        if not member.is_alias:
            _rewrite(member)
