"""What is not to be had here, said in a sentence."""

from __future__ import annotations

from typing import Any

import tokenyard


def unsupported(asked: str, why: str) -> tokenyard.Unsupported:
    return tokenyard.Unsupported(f"{asked}: {why}", asked=asked, why=why)


def refuse(options: dict[str, Any]) -> None:
    """Options of DeepEP's forks: quantised otherwise, or overlapped with a GEMM's signals."""
    asked = [name for name, value in options.items() if value]
    if asked:
        raise unsupported(", ".join(asked), "only options of DeepEP's own Buffer are known here")
