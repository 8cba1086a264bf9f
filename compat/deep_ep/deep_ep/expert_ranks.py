"""The default map of experts to ranks: the first `experts % ranks` ranks hold one more."""

from __future__ import annotations

import torch


def first_experts(experts: int, ranks: int, device: torch.device | None = None) -> torch.Tensor:
    """Returns [ranks + 1] int32: the first expert of each rank, and the number of experts.

    >>> first_experts(8, 3).tolist()
    [0, 3, 6, 8]
    """
    each, more = divmod(experts, ranks)
    rank = torch.arange(ranks + 1, dtype=torch.int32, device=device or "cpu")
    return rank * each + rank.clamp(max=more)


def ranks_of(ids: torch.Tensor, experts: int, ranks: int) -> torch.Tensor:
    """Returns int64: the rank that holds each expert; -1 for an id of -1.

    Copies nothing to the GPU, which a CUDA graph could not capture.

    >>> ranks_of(torch.tensor([[0, 3], [7, -1]]), experts=8, ranks=3).tolist()
    [[0, 1], [2, -1]]
    """
    each, more = divmod(experts, ranks)
    ids = ids.to(torch.int64)
    # Exact for ranks with an additional expert, too small for the others;
    of_wide = ids.div(each + 1, rounding_mode="floor")
    if each == 0:
        return of_wide
    # this is exact for the others and too small for those, so the maximum is exact.
    return torch.maximum(of_wide, (ids - more).div(each, rounding_mode="floor"))
