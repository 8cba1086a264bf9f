"""The home page in the package's metadata, as whoever publishes the package names it.

TOKENYARD_HOME_PAGE while the package is built; or else what a source distribution says, or where
the clone came from, if that is an https address. A build from anything else has no home page,
rather than one that leads nowhere.
"""

from __future__ import annotations

import email
import os
import pathlib
import subprocess
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]


def origin() -> str:
    """Returns the address of the clone's origin; "" without git, outside a clone, or for a path."""
    if not (ROOT / ".git").exists():
        return ""  # A clone of something else may be around this folder.
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "config", "--get", "remote.origin.url"],
            capture_output=True,
            text=True,
        )
    except OSError:
        return ""
    address = urllib.parse.urlsplit(done.stdout.strip())
    if address.scheme != "https" or address.username is not None:
        return ""  # No password, and no path of this machine, gets into a package.
    return address.geturl().removesuffix(".git")


def distributed() -> str:
    """Returns the home page in a source distribution; "" outside one."""
    told = ROOT / "PKG-INFO"
    fields = email.message_from_string(told.read_text() if told.exists() else "")
    pairs = [line.partition(", ") for line in fields.get_all("Project-URL", [])]
    return next((page for name, _, page in pairs if name == "Homepage"), "")


def urls() -> dict[str, str]:
    """Returns `[project.urls]`."""
    page = os.environ.get("TOKENYARD_HOME_PAGE", "") or distributed() or origin()
    if page and urllib.parse.urlsplit(page).scheme not in ("http", "https"):
        raise ValueError(f"TOKENYARD_HOME_PAGE: {page} is no address of the web")
    return {"Homepage": page} if page else {}


def dynamic_metadata(settings: object, project: object) -> dict[str, dict[str, str]]:
    """Returns the fields that scikit-build-core is to add to the metadata."""
    return {"urls": urls()}
