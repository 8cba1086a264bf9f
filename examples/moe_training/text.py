"""A text as bytes, and the batches of each step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class Text:
    """A text to train on, in windows of bytes."""

    content: bytes
    window: int

    def batch(self, step: int, rows: int) -> tuple[Tensor, Tensor]:
        """Returns the windows of all ranks in a step.

        Returns:
            [rows, window] int64 bytes, and the byte that follows each.
        """
        generator = torch.Generator().manual_seed(step)
        first = torch.randint(len(self.content) - self.window, (rows,), generator=generator)
        content = torch.frombuffer(bytearray(self.content), dtype=torch.uint8).long()
        windows = content[first[:, None] + torch.arange(self.window + 1)]
        return windows[:, :-1], windows[:, 1:]


def read_text(path: Path, window: int) -> Text:
    """Reads a text; raises ValueError if it is too short to train on."""
    content = path.read_bytes()
    if len(content) < 10 * window:
        raise ValueError(f"{path} has only {len(content)} bytes; {10 * window} are needed")
    return Text(content, window)
