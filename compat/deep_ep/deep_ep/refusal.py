"""What is not to be had here, said in a sentence."""

from __future__ import annotations

from typing import Any

import torch

import tokenyard

OVERLAP = "overlap"
BESIDE_OVERLAP = (
    "packed_recv_count",
    "comp_signal",
    "block_m",
    "threshold",
    "num_sms",
    "src_signals",
    "src_signal_expect_value",
)
"""Options that ask for nothing while `overlap` is off: SGLang gives them either way."""


def unsupported(asked: str, why: str) -> tokenyard.Unsupported:
    return tokenyard.Unsupported(f"{asked}: {why}", asked=asked, why=why)


def refuse(options: dict[str, Any]) -> None:
    """Options of DeepEP's forks: quantised otherwise, or overlapped with a GEMM's signals. Those
    that are off, as false, 0 or None, are let pass."""
    off = BESIDE_OVERLAP if options.get(OVERLAP) is False else ()
    asked = [name for name, value in options.items() if name not in off and _is_on(value)]
    if asked:
        raise unsupported(", ".join(asked), "only options of DeepEP's own Buffer are known here")


def _is_on(value: Any) -> bool:
    # What a tensor holds only its device knows; that it was given is enough.
    return isinstance(value, torch.Tensor) or bool(value)
