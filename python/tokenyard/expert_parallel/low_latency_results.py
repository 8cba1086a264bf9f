"""What calls of the low-latency exchange give back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

from ..arrays import A, Arrays
from ..errors import InvalidArgument

Hook = Callable[[], None]
"""The second half of a call: receives. To be called once, in the order of the first halves."""


class Memory(NamedTuple):
    """Bytes that a LowLatency takes on each rank."""

    arena_bytes: int
    """Of the arena, which peers reach."""
    device_bytes: int
    """Beside it."""
    combine_buffer_bytes: int
    """Each of the two buffers that `combine_buffer` gives, when it is first asked for; who never
    asks has none."""


@dataclass(frozen=True, eq=False)
class LowLatencyReceived(Generic[A]):
    """What a rank received. slots = ranks * tokens_max.

    The arrays are views into memory of the exchange. They hold until this batch's combine, or until
    a rank is unmasked or calls restart; another batch takes the memory after that, or once the last
    of them is gone.
    """

    x: A
    """[local experts, slots, hidden] bfloat16 or float8_e4m3fn. An expert's rows lie packed from
    slot 0, by source rank, then source token; what lies after means nothing."""
    scales: A | None
    """[local experts, slots, groups] float32, a scale for 128 channels; for "fp8_ue8m0"
    [local experts, slots, words] int32 of four exponents each; None for "bf16". Neighbouring slots
    lie next to one another in memory."""
    counts: A
    """[local experts] int32: rows of each expert."""
    ranges: A
    """[local experts, ranks, 2] int32: a source rank's first row, and how many it has."""
    source_token: A
    """[local experts, slots] int32: the token's index on its source rank."""
    hook: Hook | None
    """With `return_recv_hook`: brings all of the above."""
    _batch: Any
    _arrays: Arrays
    _weights_told: bool


class RefusedBatch(InvalidArgument):
    """A dispatch was refused for what this rank gave to it, and made without this rank's tokens.

    Where nobody combines `received`, the others wait for this rank's experts until they mask it.
    """

    received: LowLatencyReceived[Any]
    """The others' tokens, and none of this rank's. In another process only None of it arrives."""

    def __reduce__(self) -> tuple[Any, ...]:
        restore, (kind, message, fields) = super().__reduce__()
        return restore, (kind, message, fields | {"received": None})


@dataclass(frozen=True, eq=False)
class LowLatencyCombined(Generic[A]):
    """What a combine brings home."""

    x: A
    """[tokens, hidden] bfloat16."""
    lost: A
    """[tokens] int32: picks whose experts are on masked ranks, which x lacks."""
    hook: Hook | None
    """With `return_recv_hook`: brings both."""
