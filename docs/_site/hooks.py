"""Fits the repository's pages to the site, as mkdocs builds it.

Pages are written to be read in the repository, where links lead to any file. Here

- pages outside docs/ that readers want, and results, join the site under their own paths;
- links are resolved in the repository, then made relative to the site's page; a link to a file that
  is not on the site becomes plain text, and one to no file fails the build;
- a paragraph `<!-- include -->[Limits](../README.md#limits)` becomes that section's text;
- the reference is generated, and `reference/.../` in the navigation becomes its pages.
"""

from __future__ import annotations

import logging
import posixpath
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import cpp_reference  # noqa: E402
import python_reference  # noqa: E402

log = logging.getLogger("mkdocs.hooks.tokenyard")

BROUGHT = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "bench/results/*.json",
    "bench/results/*.md",
    "compat/*/README.md",
    "tests/*/sweeps.md",
)
"""Files outside docs/ that are part of the site."""
INSTEAD = {"README.md": "index.md", "docs": "index.md", "docs/decisions": "decisions/README.md"}
"""Pages of the site that stand for paths of the repository."""
_PACKAGE = "python/tokenyard"
SOURCES = {
    f"{_PACKAGE}/job.py": "jobs",
    f"{_PACKAGE}/world/world.py": "worlds",
    f"{_PACKAGE}/world/launch.py": "worlds",
    f"{_PACKAGE}/expert_parallel/throughput.py": "expert_parallel",
    f"{_PACKAGE}/expert_parallel/received.py": "expert_parallel",
    f"{_PACKAGE}/expert_parallel/low_latency.py": "low_latency",
    f"{_PACKAGE}/collectives/collectives.py": "collectives",
    f"{_PACKAGE}/device_collectives.py": "device_collectives",
    f"{_PACKAGE}/metrics.py": "metrics",
    f"{_PACKAGE}/errors.py": "errors",
} | {f"{_PACKAGE}/{module}/__init__.py": module for module in python_reference.MODULES}
"""Pages of the reference that stand for modules of Python."""

INCLUDED = re.compile(r"^<!-- include -->\[[^\]]*\]\(([^)#\s]+)(?:#([^)\s]+))?\)$", re.MULTILINE)
LINK = re.compile(
    r"^```.*?^```$|(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)|`[^`\n]*`",
    re.DOTALL | re.MULTILINE,
)
_stubs = ROOT / "build/site_stubs/_tokenyard"
HEADING = re.compile(r"^(#+) +(.+)$", re.MULTILINE)


def brought() -> list[str]:
    """Returns the paths of files that join the site, relative to the repository."""
    paths = [path for pattern in BROUGHT for path in sorted(ROOT.glob(pattern))]
    return [path.relative_to(ROOT).as_posix() for path in paths]


def uri_on_site(path: str) -> str | None:
    """Returns where a path of the repository is on the site, or None."""
    if path in INSTEAD:
        return INSTEAD[path]
    if path in SOURCES:
        return f"reference/python/{SOURCES[path]}.md"
    if path.startswith("include/tokenyard/") and path.endswith(".hpp"):
        page = f"reference/cpp/{path.removeprefix('include/tokenyard/').removesuffix('.hpp')}.md"
        return page if page in generated() else None
    if path.startswith("docs/") and not path.startswith("docs/_site/"):
        return path.removeprefix("docs/")
    return path if path in brought() else None


def path_of(uri: str) -> str:
    """Returns the path in the repository of a page of the site."""
    return uri if uri in brought() else f"docs/{uri}"


def with_links(text: str, path: str, uri: str) -> str:
    """Returns the text of a file at `path` with its links made for the page at `uri`."""

    def link(found: re.Match[str]) -> str:
        target = found["target"]
        if target is None or re.match(r"[a-z]+:|#", target):
            return found[0]
        file, _, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
        if not (ROOT / file).exists():
            log.warning("%s: the link to %s leads to no file", path, target)
            return found[0]
        there = uri_on_site(file)
        if there is None:
            return found["text"]
        relative = posixpath.relpath(there, posixpath.dirname(uri) or ".")
        return f"{found['image']}[{found['text']}]({relative}{'#' if anchor else ''}{anchor})"

    return LINK.sub(link, text)


def section_of(text: str, anchor: str | None) -> str | None:
    """Returns the text below a heading up to the next one; below the first if `anchor` is None."""
    headings = list(HEADING.finditer(re.sub(r"^```.*?^```$", _blank, text, flags=re.S | re.M)))
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        slug = re.sub(r"[^\w\- ]", "", heading[2].lower()).replace(" ", "-")
        if anchor is None or slug == anchor:
            return text[heading.end() : following.start() if following else None].strip("\n")
    return None


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


@event_priority(100)  # Before mkdocstrings reads its paths.
def on_config(config: Any) -> Any:
    """Expands the navigation's generated sections, and shows griffe the native module's stub.

    griffe finds stubs of packages only, so the stub is copied into a folder that looks like one.
    """
    count_warnings()
    cpp_reference.pages.cache_clear()  # mkdocs serve comes here again.
    _stubs.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "python/_tokenyard.pyi", _stubs / "__init__.pyi")
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] += [str(_stubs.parent)]
    pages = generated()
    config.nav = [_expanded(entry, pages) for entry in config.nav]
    return config


def count_warnings() -> None:
    """Lets `--strict` count warnings under `--quiet`, too, which would drop them uncounted."""
    logger = logging.getLogger("mkdocs")
    if logger.level > logging.WARNING:
        logger.setLevel(logging.WARNING)


def _expanded(entry: Any, pages: dict[str, str]) -> Any:
    if not isinstance(entry, dict):
        return entry
    ((title, value),) = entry.items()
    if isinstance(value, list):
        return {title: [_expanded(one, pages) for one in value]}
    if value.endswith("/"):
        return {title: [uri for uri in pages if uri.startswith(value)]}
    if value == "decisions/README.md":
        return {title: [value, *decisions()]}
    return entry


def decisions() -> list[dict[str, list[str]]]:
    """Returns the sections of docs/decisions/README.md: its tables, in order."""
    sections: list[dict[str, list[str]]] = []
    for line in (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8").splitlines():
        if begun := re.fullmatch(r"\| ([^|]+) \| \|", line):
            sections.append({begun[1]: []})
        elif page := re.match(r"\| \[\w+\]\((\w+\.md)\) \|", line):
            next(iter(sections[-1].values())).append(f"decisions/{page[1]}")
    return sections


def generated() -> dict[str, str]:
    """Returns the generated pages by uri."""
    return python_reference.pages(ROOT / "python") | cpp_reference.pages(ROOT / "include")


def on_files(files: Files, config: Any) -> Files:
    """Adds pages from outside docs/, and generated ones."""
    for path in brought():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for uri, text in generated().items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Fits links and includes."""
    uri = page.file.src_uri
    if uri.startswith(("reference/python/", "reference/cpp/")):
        return markdown
    path = path_of(uri)
    parts, end = [], 0
    for include in INCLUDED.finditer(markdown):
        source = posixpath.normpath(posixpath.join(posixpath.dirname(path), include[1]))
        file = ROOT / source
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        section = section_of(text, include[2])
        if section is None:
            log.warning("%s: nothing to include: %s", path, include[0])
            section = ""
        parts += [with_links(markdown[end : include.start()], path, uri)]
        parts += [with_links(section, source, uri)]
        end = include.end()
    return "".join([*parts, with_links(markdown[end:], path, uri)])
