"""The stream of a call, and the events that it waits for.

A call without `async_finish` runs on the caller's current stream. With it, the call runs on the
buffer's own stream, after `previous_event` and after all work of the current stream: that may still
read received arrays that have been dropped since, whose memory the call may reuse. The returned
event is the end of the call. A hook, the second half of a call, runs on the stream of the first
half. On the host there are no streams, and a call is complete when it returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from .utils.event import EventHandle, EventOverlap

Moment = EventHandle | EventOverlap | None
"""An event that a call may wait for."""


class Turn:
    """One call's position in the streams."""

    def __init__(self) -> None:
        self.end = EventOverlap()
        """The end of the call; set when the `with` block of the turn ends."""
        self._tensors: list[torch.Tensor] = []

    def uses(self, *tensors: torch.Tensor | None) -> None:
        """Registers tensors that the call accesses.

        torch does not reuse their memory before a call on the buffer's stream has ended.
        """
        self._tensors += [tensor for tensor in tensors if tensor is not None]


class CommunicationStream:
    """A buffer's own stream; there is none on the host."""

    def __init__(self, device_index: int | None) -> None:
        self.stream = None if device_index is None else torch.cuda.Stream(device_index)

    @contextlib.contextmanager
    def turn(
        self, previous_events: Sequence[Moment] = (), async_finish: bool = False
    ) -> Iterator[Turn]:
        """Runs a block after `previous_events`, on the buffer's stream if `async_finish`."""
        turn = Turn()
        events = [
            each.event if isinstance(each, EventOverlap) else each for each in previous_events
        ]
        before = [event for event in events if event is not None]
        if self.stream is None:
            yield turn
        elif not async_finish:
            for event in before:
                event.current_stream_wait()
            yield turn
        else:
            for event in (*before, EventHandle()):
                event.stream_wait(self.stream)
            with torch.cuda.stream(self.stream):
                yield turn
            for tensor in turn._tensors:
                tensor.record_stream(self.stream)
            turn.end = EventOverlap(EventHandle(self.stream))

    def caller_uses(self, *tensors: torch.Tensor | None) -> None:
        """Registers tensors made on the buffer's stream that the caller reads on its own."""
        if self.stream is None:
            return
        for tensor in tensors:
            if tensor is not None:
                tensor.record_stream(torch.cuda.current_stream())
