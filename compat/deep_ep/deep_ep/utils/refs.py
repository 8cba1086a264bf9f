"""Reference dispatch and combine from torch and its collectives alone, for DeepEP's tests."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from ..expert_ranks import first_experts, ranks_of
from .envs import get_global_seed

Rows = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
Bias = torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None

PRIME = 131071


def dispatch(
    x: Rows,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    num_max_tokens_per_rank: int,
    num_experts: int,
) -> tuple[Rows, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sends each token once to each rank that has one of its experts.

    Returns:
        Rows (and scales), ordered by source rank, then token; ids of this rank's experts (or -1);
        weights; global token numbers; and the number of rows from each rank.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    first = first_experts(num_experts, ranks).tolist()
    local = first[rank + 1] - first[rank]
    owner = ranks_of(topk_idx, num_experts, ranks)
    sent = [(owner == there).any(1).nonzero()[:, 0] for there in range(ranks)]
    tokens = torch.cat(sent)
    outgoing = torch.tensor([len(each) for each in sent], device=tokens.device)
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing)

    def exchanged(values: torch.Tensor) -> torch.Tensor:
        rows = values[tokens].contiguous()
        received = rows.new_empty(int(incoming.sum()), *rows.shape[1:])
        # As bytes: not every collective supports every dtype.
        dist.all_to_all_single(
            received.view(torch.uint8),
            rows.view(torch.uint8),
            incoming.tolist(),
            outgoing.tolist(),
        )
        return received

    rows = tuple(exchanged(part) for part in x) if isinstance(x, tuple) else exchanged(x)
    ids = exchanged(topk_idx) - first[rank]
    numbers = torch.arange(len(topk_idx), dtype=torch.int32, device=tokens.device)
    numbers = exchanged((numbers + rank * num_max_tokens_per_rank)[:, None])[:, 0]
    return (
        rows,  # type: ignore[return-value]
        ids.where((ids >= 0) & (ids < local), -1),
        exchanged(topk_weights),
        numbers,
        incoming.to("cpu", torch.int32),
    )


def generate_pre_combine_data(
    src_token_global_idx: torch.Tensor, num_max_tokens_per_rank: int, num_topk: int, hidden: int
) -> torch.Tensor:
    """Returns [tokens, topk, hidden] bfloat16 results that depend on global token numbers.

    They are sines with a different frequency for each choice of each token.
    """
    most = dist.get_world_size() * num_max_tokens_per_rank * num_topk
    device = src_token_global_idx.device
    choices = src_token_global_idx[:, None] * num_topk + torch.arange(num_topk, device=device)
    frequency = ((choices * PRIME % most).float() + 1) / most
    channels = torch.arange(1, hidden + 1, dtype=torch.float32, device=device)
    phase = math.sin(float(get_global_seed()))
    return torch.sin(frequency[:, :, None] * channels + phase).to(torch.bfloat16)


def ordered_accumulate(
    data: torch.Tensor, initial_value: torch.Tensor | None = None
) -> torch.Tensor:
    """Reduces [tokens, topk, hidden] to [tokens, hidden].

    Adds choices in order to `initial_value`, in float32, and rounds once.
    """
    tokens, topk, hidden = data.shape
    total = torch.zeros(tokens, hidden, dtype=torch.float32, device=data.device)
    if initial_value is not None:
        total += initial_value
    for choice in range(topk):
        total += data[:, choice].float()
    return total.to(data.dtype)


def combine(
    y: torch.Tensor,
    topk_idx: torch.Tensor,
    num_scaleout_ranks: int,
    num_scaleup_ranks: int,
    num_experts: int,
    bias: Bias,
    reduce_in_local: bool,
    reduce_in_scaleup: bool,
) -> torch.Tensor:
    """Reduces results [tokens, topk, hidden] to [tokens, hidden].

    Sums on each rank first (`reduce_in_local`), then in each domain (`reduce_in_scaleup`), then
    adds all to the biases; rounds each time.
    """
    rank = ranks_of(topk_idx, num_experts, num_scaleout_ranks * num_scaleup_ranks)
    if reduce_in_local:
        y = _added_in_groups(y, rank)
    if reduce_in_scaleup:
        y = _added_in_groups(y, rank.div(num_scaleup_ranks, rounding_mode="floor"))
    if isinstance(bias, tuple):
        return ordered_accumulate(y, bias[0].float() + bias[1].float())
    return ordered_accumulate(y, None if bias is None else bias.float())


def _added_in_groups(y: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """Returns each group's sum at the position of its last choice, and zeros at the others."""
    sums = torch.zeros_like(y)
    topk = y.size(1)
    for choice in range(topk):
        mine = group[:, choice, None]
        total = torch.zeros_like(y[:, 0], dtype=torch.float32)
        for earlier in range(choice + 1):
            here = group[:, earlier, None] == mine
            total += y[:, earlier].float() * here
        is_last = (group[:, choice + 1 :] != mine).all(1, keepdim=True)
        sums[:, choice] = total.to(y.dtype).where(is_last, 0)
    return sums
