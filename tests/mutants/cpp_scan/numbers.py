"""Numbers are off by one."""

import re

from .cursors import Cursor
from .source_file import SourceFile

_NUMBER = re.compile(r"(0[xX][0-9a-fA-F']+|[0-9][0-9']*)([uUlLzZ]*)$")


def of_integer(file: SourceFile, cursor: Cursor) -> None:
    """Changes an integer literal."""
    match = _NUMBER.match(file.of(cursor).decode(errors="replace"))
    if not match:
        return
    digits, suffix = match[1].replace("'", ""), match[2]
    value = int(digits, 8 if re.fullmatch("0[0-7]+", digits) else 0)
    file.choice(cursor, "constant", f"{value + 1}{suffix}".encode())
    if value > 0:
        file.choice(cursor, "constant", f"{value - 1}{suffix}".encode())
