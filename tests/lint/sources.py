"""Reads the repository's files for the checks beside it."""

import argparse
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
CODE = (".cpp", ".hpp", ".cu", ".py")

_TOKENS = re.compile(
    r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|/\*.*?\*/', re.DOTALL
)  # fmt: skip
_PYTHON_TOKENS = re.compile(
    r'"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*', re.DOTALL
)  # fmt: skip


def options(description: str | None, *flags: str) -> argparse.Namespace:
    """Returns the flags of the command line; refuses others by name, and prints --help."""
    parser = argparse.ArgumentParser(description=description)
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    return parser.parse_args()


def tracked() -> list[str]:
    """Returns the names of all files that git knows, new ones included."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return [name for name in listing.stdout.splitlines() if (ROOT / name).is_file()]


def texts(suffixes: tuple[str, ...] = CODE) -> dict[str, str]:
    """Returns the text of every file whose name ends with one of `suffixes`, by its name."""
    names = [name for name in tracked() if name.endswith(suffixes)]
    return {name: (ROOT / name).read_text(encoding="utf-8", errors="replace") for name in names}


def rows(name: str) -> list[list[str]]:
    """Returns each line of a list beside this file, split at ` | `, without comments."""
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return [
        [field.strip() for field in re.split(r"\s\|\s", line)]
        for line in lines
        if line.strip() and not line.startswith("#")
    ]


def code_of(name: str, text: str) -> str:
    """Returns `text` without comments and string literals, line for line."""

    def newlines(token: re.Match[str]) -> str:
        return "\n" * token.group().count("\n")

    return (_PYTHON_TOKENS if name.endswith(".py") else _TOKENS).sub(newlines, text)


def text_of(name: str, text: str) -> str:
    """Returns only the comments and string literals of `text`, line for line."""
    tokens = _PYTHON_TOKENS if name.endswith(".py") else _TOKENS
    end = 0
    kept = []
    for token in tokens.finditer(text):
        kept += ["\n" * text.count("\n", end, token.start()), " ", token.group()]
        end = token.end()
    return "".join(kept)


def prose_of(name: str, text: str) -> list[tuple[int, str]]:
    """Returns the comments, docstrings or paragraphs of a file, each with its first line's number.

    Comment lines that follow one another are one comment. Markdown loses tables and code.
    """
    if name.endswith(".md"):
        return _paragraphs(text)
    found: list[tuple[int, str]] = []
    last = 0
    tokens = _PYTHON_TOKENS if name.endswith(".py") else _TOKENS
    for token in tokens.finditer(text):
        word = token.group()
        opening = text.rfind("\n", 0, token.start()) + 1
        alone = not text[opening : token.start()].strip()
        number = text.count("\n", 0, token.start()) + 1
        if word.startswith('"""'):
            if alone:
                found.append((number, word.strip('"')))
        elif word.startswith(("//", "#", "/*")):
            content = re.sub(r"^(///?<?|#|/\*+<?)\s?|\*/$", "", word)
            if alone and found and last == number - 1:
                found[-1] = (found[-1][0], f"{found[-1][1]}\n{content}")
            else:
                found.append((number, content))
            last = number if alone else 0
    return found


def _paragraphs(text: str) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    fenced = False
    fresh = True
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced, fresh = not fenced, True
        elif fenced or not line.strip() or line.lstrip().startswith("|"):
            fresh = True
        else:
            item = re.match(r"\s*(?:[-*+]|\d+\.|#+|>)\s+", line)
            content = line[item.end() :] if item else line
            if fresh or item:
                found.append((number, content))
            else:
                found[-1] = (found[-1][0], f"{found[-1][1]}\n{content}")
            fresh = False
    return found


def report(check: str, notes: list[str], found: list[str], looked_at: str) -> int:
    """Prints notes and complaints, and returns the exit status."""
    for note in notes:
        print(f"note: {note}")
    for complaint in found:
        print(complaint)
    print(f"{check}: {looked_at}, {len(found)} complaints")
    return 1 if found else 0
