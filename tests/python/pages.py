"""The pages of the documentation, and their blocks of code."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from programs import ROOT

_FIRST = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
_FIRST += sorted(ROOT.glob("compat/*/README.md"))
PAGES = {str(path.relative_to(ROOT)): path for path in _FIRST} | {
    str(path.relative_to(ROOT / "docs")): path for path in sorted((ROOT / "docs").rglob("*.md"))
}


class Block(NamedTuple):
    """A block of code between two fences."""

    page: str
    line: int
    """Line of the page on which the block begins, from 1."""
    code: str

    @property
    def in_place(self) -> str:
        """Returns the code on its lines of the page, for tracebacks."""
        return "\n" * (self.line - 1) + self.code

    @property
    def is_program(self) -> bool:
        return "tokenyard.launch(" in self.code or '__name__ == "__main__"' in self.code

    @property
    def torchrun_ranks(self) -> int | None:
        """Processes of the torchrun command in the first line; None if there is none."""
        told = re.match(r"# torchrun --nproc-per-node (\d+) \w+\.py$", self.code, re.MULTILINE)
        return None if told is None else int(told[1])

    @property
    def needs_gpu(self) -> bool:
        return "torch.cuda" in self.code and "torch.cuda.is_available" not in self.code

    def run(self, names: dict[str, Any], replaced: tuple[str, str] = ("", "")) -> None:
        """Runs it in a namespace, which it extends; tracebacks name the page's lines."""
        assert replaced[0] in self.code
        exec(compile(self.in_place.replace(*replaced), PAGES[self.page], "exec"), names)


def text_of(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


def blocks_of(page: str, language: str) -> list[Block]:
    """Returns the blocks of a page in order."""
    text = text_of(page)
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(page, text.count("\n", 0, block.start(1)) + 1, block[1]) for block in found]


def fragments(page: str) -> list[Block]:
    """Returns its Python blocks that are no complete programs."""
    return [block for block in blocks_of(page, "python") if not block.is_program]
