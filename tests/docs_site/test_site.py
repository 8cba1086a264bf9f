"""The site's scripts: links, includes, docstrings, the reference and the page of results.

Needs docs/_site/requirements.txt. `check.py` looks at the built site itself.
"""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs/_site"
sys.path.insert(0, str(SITE))

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")

import across_hosts  # noqa: E402
import check  # noqa: E402
import cpp_reference  # noqa: E402
import docstrings  # noqa: E402
import exchange_picture  # noqa: E402
import hooks  # noqa: E402
import performance  # noqa: E402
import python_reference  # noqa: E402


@pytest.mark.parametrize(
    ("link", "page", "wanted"),
    [
        ("[a](glossary.md)", "docs/jobs.md", "[a](glossary.md)"),
        ("[a](../README.md#limits)", "docs/jobs.md", "[a](index.md#limits)"),
        ("[a](../ARCHITECTURE.md)", "docs/jobs.md", "[a](ARCHITECTURE.md)"),
        ("[a](docs/jobs.md#use-it)", "ARCHITECTURE.md", "[a](jobs.md#use-it)"),
        ("[a](../jobs.md)", "docs/decisions/streams.md", "[a](../jobs.md)"),
        ("[a](python/bindings)", "CONTRIBUTING.md", "a"),
        ("[`a`](../src/base)", "docs/jobs.md", "`a`"),
        (
            "[a](../../include/tokenyard/job.hpp)",
            "docs/reference/README.md",
            "[a](cpp/job.md)",
        ),
        (
            "[a](../python/tokenyard/moe/__init__.py)",
            "docs/torch.md",
            "[a](reference/python/moe.md)",
        ),
        ("[a](https://example.org)", "docs/jobs.md", "[a](https://example.org)"),
        ("`[a](nowhere.md)`", "docs/jobs.md", "`[a](nowhere.md)`"),
        ("```\n[a](nowhere.md)\n```", "docs/jobs.md", "```\n[a](nowhere.md)\n```"),
    ],
)
def test_links_lead_to_pages_of_the_site_or_are_plain(link: str, page: str, wanted: str) -> None:
    uri = page.removeprefix("docs/")
    assert hooks.with_links(link, page, uri) == wanted


def test_a_link_to_no_file_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    hooks.with_links("[a](nowhere.md)", "docs/jobs.md", "jobs.md")
    assert "docs/jobs.md: the link to nowhere.md leads to no file" in caplog.text


def test_sources_that_the_site_shows_as_pages_have_them() -> None:
    for path in hooks.SOURCES:
        assert (ROOT / path).is_file()
        assert hooks.uri_on_site(path) in hooks.generated()


def test_a_quiet_build_is_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("mkdocs")
    monkeypatch.setattr(logger, "level", logging.ERROR)  # As `--quiet` sets it.
    hooks.count_warnings()
    assert logger.level == logging.WARNING


def test_a_section_ends_at_the_next_heading_outside_code() -> None:
    text = "# A\n\nfirst\n\n## B, c\n\n```sh\n# no heading\n```\n\n## D\n\nlast\n"
    assert hooks.section_of(text, None) == "first"
    assert hooks.section_of(text, "b-c") == "```sh\n# no heading\n```"
    assert hooks.section_of(text, "d") == "last"
    assert hooks.section_of(text, "e") is None


def test_every_decision_is_in_the_navigation() -> None:
    shown = [page for section in hooks.decisions() for pages in section.values() for page in pages]
    files = [f"decisions/{path.name}" for path in (ROOT / "docs/decisions").glob("*.md")]
    assert sorted([*shown, "decisions/README.md"]) == sorted(files)


def test_sections_of_docstrings_become_lists() -> None:
    text = (
        "Does it.\n\nArgs:\n    a, b: two\n        lines.\n    c: one of\n        - d: first\n"
        "    e,\n    f: names on two lines.\n\nRaises:\n    As `g`.\n\n>>> h()\n1\n"
    )
    assert docstrings.markdown(text) == (
        "Does it.\n\n**Arguments**\n\n- `a`, `b`: two lines.\n- `c`: one of\n    - d: first\n"
        "- `e`, `f`: names on two lines.\n\n**Raises**\n\n- As `g`.\n\n```pycon\n>>> h()\n1\n```\n"
    )


def test_every_public_python_name_has_a_page() -> None:
    pages = python_reference.pages(ROOT / "python")
    assert "::: tokenyard.ExpertParallel\n" in pages["reference/python/expert_parallel.md"]
    assert "::: tokenyard.megakernel.Graph\n" in pages["reference/python/megakernel.md"]


def test_headers_become_pages(tmp_path: Path) -> None:
    header = tmp_path / "tokenyard/a.hpp"
    header.parent.mkdir()
    header.write_text(
        "/// A file.\n#pragma once\nnamespace tokenyard {\n/// Sizes.\nstruct Sizes {\n"
        "  int rows = 0;  ///< rows_max per call\n"
        "  long bytes =\n      1L << 30;  ///< bytes | words\n};\n"
        "/// A class.\nclass Thing {\n public:\n  Thing(const Thing&) = delete;\n"
        "  /// Returns `rows`.\n  int rows() const { return rows_; }\n"
        " private:\n  void hidden();\n  int rows_ = 0;\n};\n"
        "/// How.\nenum class How { fast, slow };\nnamespace detail { void hidden(); }\n}\n"
    )
    (page,) = cpp_reference.pages(tmp_path).values()
    assert "| `int rows = 0` | rows\\_max per call |" in page
    assert "| `long bytes = 1L << 30` | bytes \\| words |" in page
    assert "```cpp\nint rows() const;\n```\n\nReturns `rows`." in page
    assert "| `slow` |  |" in page
    assert "hidden" not in page
    assert "delete" not in page


def test_every_public_header_has_a_page() -> None:
    pages = cpp_reference.pages(ROOT / "include")
    assert len(pages) == len([*(ROOT / "include").rglob("*.hpp")])
    # task.hpp declares nothing itself: its page is its comment.
    bare = [uri for uri, page in pages.items() if "\n## " not in page]
    assert bare == ["reference/cpp/megakernel/task.md"]


def test_the_page_of_results_is_what_the_results_say() -> None:
    assert performance.PAGE.read_text(encoding="utf-8") == performance.page()


def test_the_page_of_models_is_what_the_results_say() -> None:
    assert across_hosts.is_current()


def test_goals_between_hosts_follow_from_case_and_shape() -> None:
    """Of 200 us of bytes: shares of the link for many tokens, microseconds over it for few."""

    def goal(case: str, ranks: int, tokens: int) -> float | None:
        return across_hosts.goal_us(
            {"case": case, "ranks": ranks, "tokens": tokens, "floor": 200.0}
        )

    assert goal("dispatch bf16 model", 32, 128) == 235
    assert goal("dispatch bf16 model", 16, 128) is None
    assert goal("combine bf16 model", 64, 1024) == 250
    assert goal("combine bf16 model", 16, 1024) == 255
    assert goal("dispatch fp8 model", 16, 4096) == pytest.approx(227.27, abs=0.01)
    assert goal("dispatch bf16 model", 24, 4096) is None
    assert goal("dispatch bf16 model", 96, 4096) == pytest.approx(206.19, abs=0.01)
    assert goal("dispatch bf16 model, zipf", 32, 128) is None
    assert goal("low latency combine bf16 model", 32, 128) == pytest.approx(233.45)


def test_the_table_of_install_is_what_the_results_say() -> None:
    assert "\n".join(performance.install_rows()) in (ROOT / "docs/install.md").read_text()


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    shown = set(re.findall(r"[\w/]+\.md", navigation))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= shown


def test_the_picture_is_what_its_script_draws() -> None:
    assert exchange_picture.PICTURE.read_text(encoding="utf-8") == exchange_picture.drawn()


def test_links_and_anchors_of_a_built_site_are_checked(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<a href="b/#there">1</a><a href="b/#nowhere">2</a><a href="c/">3</a>'
        '<script src="https://example.org/a.js"></script>'
    )
    (tmp_path / "b").mkdir()
    (tmp_path / "b/index.html").write_text('<h1 id="there">B</h1><a href="..">home</a>')
    assert check.problems(tmp_path) == [
        "index.html: loads https://example.org/a.js from another host",
        "index.html: b/#nowhere leads to no anchor",
        "index.html: c/ leads to no file",
    ]
    done = subprocess.run([sys.executable, SITE / "check.py", tmp_path], capture_output=True)
    assert done.returncode == 1
