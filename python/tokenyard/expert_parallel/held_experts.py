"""The experts that a rank holds, and who is told when they change."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import _tokenyard

from ..sizes import size_of

ExpertsChanged = Callable[[list[int]], None]
"""Called with the expert at each place of this rank, or -1."""


class HeldExperts:
    """Has a hook called after changes that give this rank other experts."""

    def __init__(self, native: Any) -> None:
        self.hook: ExpertsChanged | None = None
        # Weak: a hook may hold the exchange, which no garbage collector would see through C++.
        mine = weakref.ref(self)

        def changed(held: list[int]) -> None:
            held_experts = mine()
            if held_experts is not None and held_experts.hook is not None:
                held_experts.hook(held)

        native.on_experts_changed(changed)


def spread_lost_experts(expert_at: Sequence[int], living: Sequence[bool]) -> list[int]:
    """Returns the expert map with which an exchange goes on after ranks are lost.

    The places of those ranks become empty, and experts that thereby have no place any more get the
    empty places of the others, as far as there are any: in the order of their numbers, each on the
    rank that then holds the fewest experts. So all ranks that agree on the arguments agree on the
    map. `LowLatency.evict` uses it.

    Args:
        expert_at: the expert in each place of all ranks, ordered by rank, or -1; before any rank
            was lost.
        living: [ranks] whether each rank is still there.

    >>> spread_lost_experts([0, 1, -1, 2, 0, -1], [True, False])
    [0, 1, 2, -1, -1, -1]
    """
    places = [size_of("expert_at", at, smallest=-1, largest=2**31 - 1) for at in expert_at]
    return _tokenyard.spread_lost_experts(places, [bool(lives) for lives in living])
