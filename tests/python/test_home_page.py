"""The home page in the package's metadata."""

import importlib.util
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def home_page(tmp_path, monkeypatch):
    """packaging/home_page.py, with an empty clone as the tree around it."""
    tree = tmp_path / "tree"
    spec = importlib.util.spec_from_file_location("home_page", ROOT / "packaging" / "home_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    monkeypatch.setattr(module, "ROOT", tree)
    monkeypatch.delenv("TOKENYARD_HOME_PAGE", raising=False)
    return module


def cloned_from(module, address: str) -> dict[str, str]:
    """The addresses of a clone of that origin."""
    git = ["git", "-C", str(module.ROOT), "config", "remote.origin.url", address]
    subprocess.run(git, check=True)
    return module.urls()


def test_the_clone_s_origin(home_page):
    page = {"Homepage": "https://example.org/group/tokenyard"}
    assert cloned_from(home_page, "https://example.org/group/tokenyard.git") == page


@pytest.mark.parametrize(
    "address", ["/srv/git/tokenyard", "git@example.org:tokenyard", "https://me:word@example.org/t"]
)
def test_no_path_and_no_password_gets_into_a_package(home_page, address):
    assert home_page.urls() == {}
    assert cloned_from(home_page, address) == {}


def test_the_publisher_s_word_goes_first(home_page, monkeypatch):
    monkeypatch.setenv("TOKENYARD_HOME_PAGE", "https://example.org/tokenyard")
    page = {"Homepage": "https://example.org/tokenyard"}
    assert cloned_from(home_page, "https://example.org/elsewhere") == page
    monkeypatch.setenv("TOKENYARD_HOME_PAGE", "tokenyard")
    with pytest.raises(ValueError, match="no address of the web"):
        home_page.urls()


def test_a_source_distribution_tells_its_own(home_page):
    shutil.rmtree(home_page.ROOT / ".git")
    subprocess.run(["git", "init", "-q", str(home_page.ROOT / "..")], check=True)
    assert cloned_from(home_page, "https://example.org/around") == {}
    (home_page.ROOT / "PKG-INFO").write_text(
        "Metadata-Version: 2.4\nProject-URL: Homepage, https://example.org/tokenyard\n\nText"
    )
    assert home_page.urls() == {"Homepage": "https://example.org/tokenyard"}
