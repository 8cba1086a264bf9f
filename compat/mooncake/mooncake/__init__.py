"""Mooncake's expert-parallel `Buffer` over Tokenyard: `mooncake.mooncake_ep_buffer.Buffer`.

It is a distribution of its own, so that it never stands in for a real Mooncake unasked.
"""

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
"""Mooncake has a distribution for each kind of machine, which all bring the same package."""

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
