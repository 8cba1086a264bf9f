"""Writes traces of calls to files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from .received import Moment


def write_perfetto(path: str | os.PathLike[str], rank: int, moments: Iterable[Moment]) -> None:
    """Writes moments as a Perfetto (Chrome) trace.

    Each block is a track; a span ends at the moment in its name and begins at the one before.
    """
    events = []
    before: dict[int, int] = {}
    for block, name, ns in moments:
        if block in before:
            span = {"ts": before[block] / 1e3, "dur": (ns - before[block]) / 1e3}
            where = {"pid": rank, "tid": block}
            events.append({"name": f"until {name}", "ph": "X"} | span | where)
        before[block] = ns
    Path(path).write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
