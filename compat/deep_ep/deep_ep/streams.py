"""On which stream a call's work goes, and what it waits for.

A call without `async_finish` goes to the caller's current stream. One with it goes to the buffer's
own, after `previous_event` and after all that the current stream holds: that may still read arrays
that were received before and have died since, whose memory the call may take. The event that it
returns is its end. A hook, the second half of a call, goes to the stream of the first half. On the
host there are no streams, and a call has ended when it returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from .utils.event import EventHandle, EventOverlap

Moment = EventHandle | EventOverlap | None
"""What a call may be told to wait for."""


class Turn:
    """One call's place among the work of streams."""

    def __init__(self) -> None:
        self.end = EventOverlap()
        """When it ends; made as the turn is left."""
        self._tensors: list[torch.Tensor] = []

    def uses(self, *tensors: torch.Tensor | None) -> None:
        """Of a call on the buffer's stream: memory of torch's that it reads or writes, which torch
        gives to nobody else before it has ended."""
        self._tensors += [tensor for tensor in tensors if tensor is not None]


class CommunicationStream:
    """A buffer's own stream; there is none on the host."""

    def __init__(self, device_index: int | None) -> None:
        self.stream = None if device_index is None else torch.cuda.Stream(device_index)

    @contextlib.contextmanager
    def turn(
        self, previous_events: Sequence[Moment] = (), async_finish: bool = False
    ) -> Iterator[Turn]:
        """A call's place: after `previous_events`, and on the buffer's stream if `async_finish`."""
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
        """Tensors made on the buffer's stream, which the caller reads on its own."""
        if self.stream is None:
            return
        for tensor in tensors:
            if tensor is not None:
                tensor.record_stream(torch.cuda.current_stream())
