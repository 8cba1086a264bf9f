"""Epochs, parities and sequence numbers are those of another call."""

import re

from .cursors import INTEGERS, Cursor
from .source_file import SourceFile

EPOCHS = re.compile(r"(^|_)(epoch|parity|sequence|generation|ballot|term|run|batch)_?$")


def of_name(file: SourceFile, cursor: Cursor) -> None:
    """Takes the word of the call before or after, where a name is read."""
    if not EPOCHS.search(cursor.spelling) or cursor.type.get_canonical().kind not in INTEGERS:
        return
    text = file.of(cursor)
    kind = b"static_cast<std::remove_cvref_t<decltype(" + text + b")>>"
    if "parity" in cursor.spelling:
        file.choice(cursor, "epoch", kind + b"((" + text + b")^1)", f"{text.decode()} -> the other")
        return
    for change in (b"-1", b"+1"):
        file.choice(cursor, "epoch", kind + b"((" + text + b")" + change + b")",
                    f"{text.decode()} -> {text.decode()} {change.decode()}")  # fmt: skip
