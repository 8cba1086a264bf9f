"""Scores that make the experts of rank 0 more popular than others."""

from __future__ import annotations

import torch

from ..expert_ranks import first_experts, ranks_of
from ..refusal import unsupported

STEPS = 20
"""Steps of the search for a weight, which finds it to a millionth."""
HEAVIEST = 100.0


def get_unbalanced_scores(
    num_tokens: int,
    num_experts: int,
    num_ranks: int,
    num_topk: int,
    ratio: float,
    precise: bool = False,
) -> torch.Tensor:
    """Returns [tokens, experts] scores that send rank 0 about `ratio` times as many tokens.

    The ratio compares rank 0 with the average of the others, by the `num_topk` largest scores.

    Raises:
        Unsupported: `precise` is set.
    """
    if precise:
        raise unsupported("precise", "scores are drawn, and their loads come out about right")
    if ratio == 1:
        return _scores(num_tokens, num_experts, num_ranks, 1.0)
    low, high = 1.0, HEAVIEST
    for _ in range(STEPS):
        middle = (low + high) / 2
        scores = _scores(num_tokens, num_experts, num_ranks, middle)
        if _load_of_first(scores, num_ranks, num_topk) > ratio:
            high = middle
        else:
            low = middle
    return _scores(num_tokens, num_experts, num_ranks, low)


def _scores(tokens: int, experts: int, ranks: int, weight: float) -> torch.Tensor:
    """Returns uniform scores, `weight` times as large for the experts of rank 0."""
    scores = torch.rand(tokens, experts, dtype=torch.float32)
    scores[:, : int(first_experts(experts, ranks)[1])] *= weight
    return scores


def _load_of_first(scores: torch.Tensor, ranks: int, topk: int) -> float:
    """Returns the tokens that go to rank 0 over the average of the other ranks."""
    chosen = ranks_of(scores.topk(topk).indices, scores.size(1), ranks)
    loads = torch.stack([(chosen == rank).any(1).sum() for rank in range(ranks)]).float()
    return (loads[0] / loads[1:].mean()).item()
