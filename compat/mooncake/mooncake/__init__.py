"""Tokenyard's `mooncake` stands in for Mooncake: `mooncake.mooncake_ep_buffer.Buffer` and `pg`.

A separate distribution, so that it replaces the real Mooncake only where it is installed.
"""

import logging
from importlib import metadata

from .mooncake_ep_buffer import Buffer, EventOverlap

__all__ = ["Buffer", "EventOverlap"]

_BUILDS = (
    "",
    "-non-cuda",
    "-cuda13",
    "-efa",
    "-efa-cuda13",
    "-efa-non-cuda",
    "-musa",
    "-npu",
    "-rocm",
)
"""Suffixes of Mooncake's distributions, one per kind of machine, all with the same package."""

for _build in _BUILDS:
    _name = f"mooncake-transfer-engine{_build}"
    try:
        _real = metadata.version(_name)
    except metadata.PackageNotFoundError:
        continue
    raise ImportError(
        f"{_name} {_real} and tokenyard-mooncake are both installed, and both are imported as"
        " mooncake: please uninstall one of them"
    )

logging.getLogger(__name__).info(
    "mooncake stands in for Mooncake's Buffer and groups, over Tokenyard"
)
