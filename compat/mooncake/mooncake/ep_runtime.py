"""The size of Mooncake's Buffer, and what it says of its paths."""

from __future__ import annotations

import tokenyard

TOPK_MAX = 16
"""Experts per token for which memory is sized: the largest number of an exchange."""


def get_ep_buffer_size_hint(
    num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
) -> int:
    """Returns the bytes for calls of this shape with up to 16 experts per token."""
    return tokenyard.LowLatency.memory(
        experts=num_experts,
        hidden=hidden,
        topk=min(TOPK_MAX, num_experts),
        tokens_max=num_max_dispatch_tokens_per_rank,
        ranks=num_ranks,
    ).arena_bytes


class Runtime:
    """Stands for Mooncake's object behind `mooncake_ep_buffer.Buffer.runtime`."""

    def __init__(self, world: tokenyard.World, disable_p2p: bool) -> None:
        reaches = {peer.reach for peer in world.topology.peers}
        self._puts = "put_signal" in reaches
        self._p2p = not disable_p2p

    def ibgda_disabled(self) -> bool:
        """Returns whether no rank is reached over the network."""
        return not self._puts

    def p2p_enabled(self) -> bool:
        """Returns whether ranks of one host are reached by loads and stores."""
        return self._p2p

    def use_fast_path(self) -> bool:
        """Returns True: there is no slower path."""
        return True
