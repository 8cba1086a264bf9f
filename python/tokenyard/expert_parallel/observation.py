"""What an exchange says of itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import _tokenyard

from ..errors import invalid
from ..sizes import size_of
from ..world.world import World
from .received import Load, Moment
from .row_formats import ROWS


class Observation:
    """The part of `ExpertParallel` that only looks."""

    _native: Any
    world: World

    @property
    def sms(self) -> int:
        """How many multiprocessors (blocks, on the host) a call uses."""
        return self._native.sms

    @property
    def sms_reason(self) -> str:
        """Why it is that many, in a sentence."""
        return self._native.sms_reason

    def memory(
        self,
        *,
        tokens: int,
        rows_received: int,
        dtype: str = "bfloat16",
        row_bytes: int = 0,
        scale_words: int = 0,
    ) -> dict[str, int]:
        """What a dispatch takes of the arena, in bytes.

        Args:
            tokens: that this rank dispatches.
            rows_received: that come to it.
            dtype, row_bytes, scale_words: of the rows; row_bytes only of uint8.

        Returns:
            "object": the exchange itself, as long as it lives; "peak": a dispatch while the number
            of rows is not known; "kept": once it is known, by what was received and its route;
            "kept_by_route": of that, by the route once the rows have died.
        """
        if dtype not in ROWS:
            raise invalid("dtype", " or ".join(ROWS), dtype)
        return self._native.memory(
            type=_tokenyard.ElementType[dtype],
            row_bytes=size_of("row_bytes", row_bytes),
            scale_words=size_of("scale_words", scale_words),
            tokens=size_of("tokens", tokens),
            rows_received=size_of("rows_received", rows_received),
        )

    @property
    def load(self) -> Load:
        """Tokens an expert and time waited a rank, over all calls; does not wait for any."""
        return Load(*self._native.load())

    def trace_calls(self, on: bool = True) -> None:
        """Has calls note when each block reaches each moment, or no longer."""
        self._native.trace_calls(on)

    def last_trace(self) -> list[Moment]:
        """The last call that was traced, block by block, once its work has ended (see `wait`)."""
        return [Moment(*moment) for moment in self._native.last_trace()]

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes `last_trace` as a Perfetto (Chrome) trace: a line a block, and on it what the
        block was doing until it reached each moment."""
        events = []
        before: dict[int, int] = {}
        for block, name, ns in self.last_trace():
            if block in before:
                span = {"ts": before[block] / 1e3, "dur": (ns - before[block]) / 1e3}
                place = {"pid": self.world.rank, "tid": block}
                events.append({"name": f"until {name}", "ph": "X"} | span | place)
            before[block] = ns
        Path(path).write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
