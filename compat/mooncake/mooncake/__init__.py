"""Mooncake's expert-parallel `Buffer` over Tokenyard: `mooncake.mooncake_ep_buffer.Buffer`.

It is a distribution of its own, so that it never stands in for a real Mooncake unasked.
"""

from importlib import metadata

from .mooncake_ep_buffer import Buffer, EventOverlap

__all__ = ["Buffer", "EventOverlap"]

for _name in ("mooncake-transfer-engine", "mooncake-transfer-engine-non-cuda"):
    try:
        _real = metadata.version(_name)
    except metadata.PackageNotFoundError:
        continue
    raise ImportError(
        f"{_name} {_real} and tokenyard-mooncake are both installed, and both are imported as"
        " mooncake: please uninstall one of them"
    )
