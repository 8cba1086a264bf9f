"""The environment of a measurement."""

from __future__ import annotations

import datetime
import re
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def environment(gpus: int, commit: str = "") -> dict[str, Any]:
    """Returns the header of a results file; fields that cannot be determined are empty."""
    release = re.search(r"release ([\d.]+)", printed_by("nvcc", "--version"))
    models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    query = ("nvidia-smi", "--format=csv,noheader")
    return dict(
        gpu=first_line(printed_by(*query, "--query-gpu=name")),
        gpus=gpus,
        driver=first_line(printed_by(*query, "--query-gpu=driver_version")),
        cuda=release.group(1) if release else "",
        cpu=models[0] if models else "",
        commit=commit or first_line(printed_by("git", "rev-parse", "--short", "HEAD")),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def printed_by(*command: str) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return ""


def first_line(text: str) -> str:
    return text.partition("\n")[0].strip()
