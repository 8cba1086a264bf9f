"""DeepEP's events. On the host they are always complete."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import torch


class EventHandle:
    """An event recorded on a stream, by default the current one."""

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        self._event: torch.cuda.Event | None = None
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            self._event = torch.cuda.Event()
            self._event.record(stream or torch.cuda.current_stream())

    def current_stream_wait(self) -> None:
        """Makes later work on the current stream wait for the event."""
        self.stream_wait(None)

    def stream_wait(self, stream: torch.cuda.Stream | None) -> None:
        """Makes later work on a stream wait for the event; on the current one if None."""
        if self._event is not None:
            (stream or torch.cuda.current_stream()).wait_event(self._event)


class EventOverlap:
    """The end of a call that runs beside the current stream.

        with buffer.combine(..., async_finish=True)[2]:
            ...  # Runs beside the combine; work after the block waits for it.

    Args:
        event: the end of the call; None if it runs on the current stream.
        extra_tensors: tensors to keep alive as long as this object.
    """

    def __init__(
        self,
        event: EventHandle | None = None,
        extra_tensors: tuple[torch.Tensor | None, ...] | None = None,
    ) -> None:
        self.event = event
        self.extra_tensors = extra_tensors
        self.hook_after_wait: Callable[[], None] | None = None
        self._releases = False

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Makes later work on the current stream wait for the call."""
        if self.event is not None:
            self.event.current_stream_wait()
        if self.hook_after_wait is not None:
            hook, self.hook_after_wait = self.hook_after_wait, None
            hook()
        if release_handle:
            self.event = None

    def register_hook_after_wait(self, hook_after_wait: Callable[[], None]) -> None:
        """Registers a function to be called once, at the end of the next wait."""
        if self.hook_after_wait is not None:
            raise RuntimeError("this event has a hook already, which has not been called yet")
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> EventOverlap:
        """Sets the option of the following block: `with event(release_handle=True):`."""
        self._releases = release_handle
        return self

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        releases, self._releases = self._releases, False
        if self.event is not None:
            self.current_stream_wait(releases)
