"""The pages of the documentation, and the blocks of code that they show."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from programs import ROOT

_FIRST = (ROOT / "README.md", ROOT / "CONTRIBUTING.md")
PAGES = {path.name: path for path in (*_FIRST, *sorted((ROOT / "docs").glob("*.md")))}


class Block(NamedTuple):
    """What stands between two fences."""

    page: str
    line: int
    """Of the page, counted from 1: the block's first."""
    code: str

    @property
    def in_place(self) -> str:
        """The code on the lines that it has on its page, for tracebacks."""
        return "\n" * (self.line - 1) + self.code

    @property
    def is_program(self) -> bool:
        return "tokenyard.launch(" in self.code

    @property
    def needs_gpu(self) -> bool:
        return "torch.cuda" in self.code

    def run(self, names: dict[str, Any], replaced: tuple[str, str] = ("", "")) -> None:
        """In these names, which it adds to, where it stands: tracebacks name the page's lines."""
        assert replaced[0] in self.code
        exec(compile(self.in_place.replace(*replaced), PAGES[self.page], "exec"), names)


def text_of(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


def blocks_of(page: str, language: str) -> list[Block]:
    """Those of a page, in their order."""
    text = text_of(page)
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(page, text.count("\n", 0, block.start(1)) + 1, block[1]) for block in found]


def fragments(page: str) -> list[Block]:
    """Its Python that is no program by itself."""
    return [block for block in blocks_of(page, "python") if not block.is_program]
