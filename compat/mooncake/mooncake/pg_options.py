"""Options of Mooncake's backends, and the answers of its calls on membership."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tokenyard.errors import Unsupported, invalid
from tokenyard.sizes import size_of


class MooncakeBackendOptions:
    """Options of `init_process_group` and `new_group` with backend `mooncake-cpu` or `mooncake`.

    Takes Mooncake's overloads: `(max_group_size, is_extension, auto_deactivate_on_failure,
    auto_sync_on_failure)` or `(active_ranks, is_extension, max_group_size)`, of which each but the
    first argument may be left out.

    Args:
        max_group_size: places of the group; 0 or less: as many as it has ranks.
        active_ranks: contiguous int32 tensor that shows the membership: 1 for a rank that takes
            part. Its contents are overwritten.
        is_extension: whether this process enters a running group, by `join_group`.
        auto_deactivate_on_failure: whether a lost rank becomes inactive by itself. If not,
            `active_ranks` shows it until `deactivate_ranks`, and operations report it as failed.
        auto_sync_on_failure: whether operations end only once the survivors agree. That is always
            so here; needs `auto_deactivate_on_failure`, as in Mooncake.

    Raises:
        InvalidArgument: an option is unknown or wrong; names it.
    """

    _NAMES = (
        "max_group_size",
        "is_extension",
        "auto_deactivate_on_failure",
        "auto_sync_on_failure",
    )
    _NAMES_WITH_TENSOR = ("active_ranks", "is_extension", "max_group_size")

    def __init__(self, *options: Any, **named: Any) -> None:
        has_tensor = "active_ranks" in named or (options and isinstance(options[0], torch.Tensor))
        names = self._NAMES_WITH_TENSOR if has_tensor else self._NAMES
        if len(options) > len(names):
            raise invalid("pg_options", f"at most {', '.join(names)}", f"{len(options)} options")
        given = dict(zip(names, options, strict=False))
        for name, value in named.items():
            if name not in names:
                raise invalid(name, f"an option of {', '.join(names)}", "an unknown option")
            if name in given:
                raise invalid(name, "one value", "two")
            given[name] = value
        if not given:
            raise invalid("pg_options", "max_group_size or active_ranks", "no option")
        self.active_ranks: torch.Tensor | None = given.get("active_ranks")
        self.max_group_size = _places(given.get("max_group_size", 0))
        self.is_extension = _flag("is_extension", given.get("is_extension", False))
        self.auto_deactivate_on_failure = _flag(
            "auto_deactivate_on_failure", given.get("auto_deactivate_on_failure", True)
        )
        self.auto_sync_on_failure = _flag(
            "auto_sync_on_failure", given.get("auto_sync_on_failure", True)
        )
        if self.auto_sync_on_failure and not self.auto_deactivate_on_failure:
            raise invalid(
                "auto_sync_on_failure", "False without auto_deactivate_on_failure", "True"
            )
        if has_tensor:
            _check_active_ranks(self.active_ranks)


def _places(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid("max_group_size", "an int", repr(value))
    return max(value, 0)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise invalid(name, "True or False", repr(value))
    return value


def _check_active_ranks(tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise invalid("active_ranks", "a tensor", type(tensor).__name__)
    if tensor.dtype != torch.int32 or not tensor.is_contiguous():
        layout = "contiguous" if tensor.is_contiguous() else "strided"
        raise invalid("active_ranks", "contiguous int32", f"{layout} {tensor.dtype}")


class ProposalStatus(enum.Enum):
    """Outcome of `activate_ranks` and `deactivate_ranks`."""

    Rejected = 0
    Applied = 1
    AppliedWithDroppedRanks = 2


class SyncAfterFailureStatus(enum.Enum):
    """Outcome of `sync_after_failure`."""

    Reconciled = 0
    NoPending = 1
    Rejected = 2


@dataclass(frozen=True)
class ProposeViewUpdateResponse:
    """Answer of `activate_ranks` and `deactivate_ranks`."""

    status: ProposalStatus
    new_epoch: int
    dropped_ranks: list[int] = field(default_factory=list)
    """Always empty: the ranks asked for are changed, or none."""
    reject_reason: str = ""


@dataclass(frozen=True)
class SyncAfterFailureResponse:
    """Answer of `sync_after_failure`."""

    status: SyncAfterFailureStatus
    reject_reason: str = ""


@dataclass
class Settings:
    """The values that the process's setters have set, for jobs that start later."""

    address: str = ""
    """Address at which other ranks reach this one; detected if empty."""
    silence_s: float | None = None
    """Seconds without a heartbeat after which a rank counts as lost; None: the default."""


settings = Settings()


def set_host_ip(host: str) -> None:
    """Sets the address at which other ranks reach this one, for groups made later."""
    if not isinstance(host, str):
        raise invalid("host", "an address, or an empty text to detect it", repr(host))
    settings.address = host


def set_collective_timeout_us(us: int) -> None:
    """Sets for how long a rank may be silent before it counts as lost, for groups made later."""
    settings.silence_s = size_of("us", us, smallest=1) / 1e6


def set_fault_reconciliation_window_us(us: int) -> None:
    """Checks its argument only: survivors agree as soon as all of them have answered."""
    size_of("us", us, smallest=1)


def set_p2p_timeout_us(us: int) -> None:
    """Raises Unsupported: a message has the timeout of its group."""
    raise unsupported(
        "set_p2p_timeout_us", "a message has its group's timeout: init_process_group(timeout=...)"
    )


def set_device_filter(filters: Sequence[str]) -> None:
    """Accepts an empty list; raises Unsupported for names of network devices."""
    if list(filters):
        raise unsupported(
            "set_device_filter",
            "connections use the interface of the address that set_host_ip sets; pass []",
        )


def set_transfer_engine(engine: Any) -> None:
    """Accepts None; raises Unsupported for an engine."""
    if engine is not None:
        raise unsupported("set_transfer_engine", "there is no transfer engine here; pass None")


def unsupported(asked: str, why: str) -> Unsupported:
    return Unsupported(f"{asked}: {why}", asked=asked, why=why)
