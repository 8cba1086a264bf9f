"""Checks a built site: links and anchors lead somewhere, and pages load nothing from elsewhere.

    python docs/_site/check.py build/site

mkdocs checks the links of Markdown; this one reads the HTML, so it sees generated pages and the
theme, too.
"""

from __future__ import annotations

import argparse
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("img", "src"), ("script", "src"), ("source", "src"), ("iframe", "src")}
LOADING_RELATIONS = {"stylesheet", "icon", "preload", "preconnect", "modulepreload"}


class Page(HTMLParser):
    """The links and ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.loaded += [values[name] for of, name in LOADED if tag == of and name in values]
        if tag == "link" and LOADING_RELATIONS & {*values.get("rel", "").split()}:
            self.loaded.append(values["href"])


def problems(site: Path) -> list[str]:
    """Returns what is wrong, a line each."""
    files = sorted(site.rglob("*.html"))
    pages = {file: Page(file.read_text(encoding="utf-8")) for file in files}
    found = []
    for file, page in pages.items():
        if file.name == "404.html":  # Its links begin at the root of a host that is not known here.
            continue
        name = file.relative_to(site)
        for link in page.loaded:
            if urlsplit(link).netloc:
                found.append(f"{name}: loads {link} from another host")
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if there.is_dir():
                there /= "index.html"
            if not there.exists():
                found.append(f"{name}: {link} leads to no file")
            elif parts.fragment and there in pages:
                anchor = unquote(parts.fragment)
                if anchor not in pages[there].ids and not anchor.startswith("__"):
                    found.append(f"{name}: {link} leads to no anchor")
    if not files:
        found.append(f"{site} has no pages")
    return found


def main() -> int:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("site", type=Path, help="folder of the built site")
    found = problems(command.parse_args().site.resolve())
    print("\n".join(found) or "Every link and anchor leads somewhere.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
