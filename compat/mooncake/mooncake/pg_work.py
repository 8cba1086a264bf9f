"""Operations of Mooncake's process groups: `wait` returns even where a peer is lost."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tokenyard.errors import OperationAborted, PeerLost
from tokenyard.torch import build

if TYPE_CHECKING:
    from .pg_membership import Membership

LOST = (OperationAborted, PeerLost)
"""Errors of an operation that cannot be completed because its peer or root is lost."""


class MooncakeWork(dist.Work):
    """An operation. As in Mooncake, `wait` does not raise if ranks are lost: see `hint`."""

    def __init__(
        self,
        membership: Membership,
        expected: set[int],
        begun: dist.Work | None,
        peer: int | None = None,
        error: Exception | None = None,
    ) -> None:
        """Wraps an operation of the C++ backend.

        Args:
            membership: that of its group.
            expected: ranks that were active when it was called.
            begun: the backend's work; None if the call itself failed with `error`.
            peer: the other rank of a message.
            error: one of `LOST`.
        """
        super().__init__()
        self._membership, self._expected = membership, expected
        self._begun, self._peer, self._error = begun, peer, error
        self._settled = error is not None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits; returns True at the end, also if ranks were lost.

        Raises:
            PeerTimeout: a rank did not take part in time.
            Fenced: this rank was deactivated.
        """
        if self._settled or self._begun is None:
            return True
        try:
            self._begun.wait(*(() if timeout is None else (timeout,)))
        except LOST as error:
            self._error = error
        self._settled = True
        self._membership.refresh()
        if self.failed_slots():
            self._membership.note_failure()
        return True

    def failed_slots(self) -> set[int]:
        """Returns the ranks that were active when it was called and are missing from its result."""
        if self._peer is not None:
            return set() if self._error is None else {self._peer}
        missing = set(getattr(self._error, "lost", ()))
        if self._begun is not None and self._begun.is_completed():
            missing |= build.load().failed_ranks(self._begun)
        return missing & self._expected

    def hint(self) -> torch.Tensor:
        """Returns a 1 for each rank of `failed_slots`, in a tensor of one int32 per place."""
        mask = torch.zeros(self._membership.places, dtype=torch.int32)
        for slot in self.failed_slots():
            mask[slot] = 1
        return mask

    def is_completed(self) -> bool:
        return self._begun is None or self._begun.is_completed()

    def is_success(self) -> bool:
        return self._error is None and (self._begun is None or self._begun.is_success())

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> Any:
        return [] if self._begun is None else self._begun.result()

    def source_rank(self) -> int:
        assert self._begun is not None
        return self._begun.source_rank()

    def get_future(self) -> torch.futures.Future[Any]:
        if self._begun is None:
            failed: torch.futures.Future[Any] = torch.futures.Future()
            assert self._error is not None
            failed.set_exception(self._error)
            return failed
        return self._begun.get_future()

    def getFuture(self) -> torch.futures.Future[Any]:  # noqa: N802  C++ calls it by this name.
        return self.get_future()
