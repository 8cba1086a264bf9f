"""Which rank holds which expert: the first `experts % ranks` ranks hold one more."""

from __future__ import annotations

import torch


def first_experts(experts: int, ranks: int, device: torch.device | None = None) -> torch.Tensor:
    """[ranks + 1] int32: the first expert of each rank, and the end of the last one's.

    >>> first_experts(8, 3).tolist()
    [0, 3, 6, 8]
    """
    each, more = divmod(experts, ranks)
    rank = torch.arange(ranks + 1, dtype=torch.int32, device=device or "cpu")
    return rank * each + rank.clamp(max=more)


def ranks_of(ids: torch.Tensor, experts: int, ranks: int) -> torch.Tensor:
    """int64: the rank that holds each expert; -1 for an id of -1. Without a copy to the GPU, which
    a CUDA graph could not capture.

    >>> ranks_of(torch.tensor([[0, 3], [7, -1]]), experts=8, ranks=3).tolist()
    [[0, 1], [2, -1]]
    """
    each, more = divmod(experts, ranks)
    ids = ids.to(torch.int64)
    # Of the ranks that hold one more this is the rank; of the others it is too small,
    of_wide = ids.div(each + 1, rounding_mode="floor")
    if each == 0:
        return of_wide
    # and this the other way round.
    return torch.maximum(of_wide, (ids - more).div(each, rounding_mode="floor"))
