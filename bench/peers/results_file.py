"""Writes bench/results/NAME.json: the environment, then one row per line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_results(path: Path, environment: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Writes the file in the format of `Report::finish` of bench/harness."""
    lines = ",\n".join(line_of(row) for row in rows)
    path.write_text(f'{{"environment":{line_of(environment)},\n"rows":[\n{lines}\n]}}\n')


def line_of(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
