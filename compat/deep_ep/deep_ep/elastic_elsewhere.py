"""Calls of DeepEP's ElasticBuffer that are not supported; each raises when it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from .refusal import unsupported

T = TypeVar("T", bound=type)

ELSEWHERE = {
    "there is no remote cache here": (
        "engram_write",
        "engram_fetch",
        "get_engram_storage_size_hint",
    ),
    "pipelines of ranks are torch.distributed's; the backend `tokenyard` has send and recv": (
        "pp_set_config",
        "pp_send",
        "pp_recv",
        "get_pp_buffer_size_hint",
    ),
    "gathering is torch.distributed's; the backend `tokenyard` has all_gather": (
        "agrs_set_config",
        "create_agrs_session",
        "destroy_agrs_session",
        "agrs_new_session",
        "agrs_get_inplace_tensor",
        "all_gather",
        "get_agrs_buffer_size_hint",
        "get_agrs_num_max_session_bytes",
    ),
}
"""Names of unsupported calls, by reason."""


def refuses_calls_elsewhere(kind: T) -> T:
    """Adds these calls to a class as static methods that raise Unsupported."""
    for why, names in ELSEWHERE.items():
        for name in names:
            setattr(kind, name, staticmethod(_refusal(name, why)))
    return kind


def _refusal(name: str, why: str) -> Callable[..., NoReturn]:
    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        raise unsupported(name, why)

    refuse.__name__ = name
    refuse.__doc__ = f"Raises Unsupported: {why}."
    return refuse
