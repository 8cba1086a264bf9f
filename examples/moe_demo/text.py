"""A text as tokens: words and punctuation marks, numbered."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")  # noqa: RUF001  The apostrophe that books print.


@dataclass(frozen=True)
class Text:
    """The part of a text that goes through the layer."""

    name: str
    words: list[str]
    """[words] vocabulary: every word once, in alphabetical order."""
    tokens: np.ndarray
    """[ranks, tokens] int64 indices into `words`: consecutive parts of the text, one per rank."""


def read_text(path: Path, ranks: int, tokens: int) -> Text:
    """Reads as much as is needed; repeats a text that is too short."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None
    found = [word.lower() for word in WORD.findall(text)]
    if not found:
        raise ValueError(f"{path} holds no words")
    used = [found[position % len(found)] for position in range(ranks * tokens)]
    words = sorted(set(used))
    number = {word: index for index, word in enumerate(words)}
    numbered = np.array([number[word] for word in used], np.int64)
    return Text(path.name, words, numbered.reshape(ranks, tokens))
