"""DeepEP's two descriptions of a route: by experts, or by ranks."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tokenyard.errors import invalid

from .expert_ranks import first_experts, ranks_of
from .rdma_ranks import RdmaRanks


class Layout(NamedTuple):
    """The tensors that `Buffer.get_dispatch_layout` computes from expert ids."""

    num_tokens_per_rank: torch.Tensor
    """[ranks] int32."""
    num_tokens_per_rdma_rank: torch.Tensor | None
    """[hosts] int32; None of ranks of one host."""
    num_tokens_per_expert: torch.Tensor
    """[experts] int32."""
    is_token_in_rank: torch.Tensor
    """[tokens, ranks] bool."""


def layout_of(
    topk_idx: torch.Tensor, experts: int, ranks: int, hosts: RdmaRanks | None = None
) -> Layout:
    """Returns the layout of expert ids, without waiting for the GPU.

    Args:
        hosts: those of the ranks; None of ranks of one host.

    >>> layout_of(torch.tensor([[0, 3], [2, -1]]), experts=4, ranks=2)[0].tolist()
    [1, 2]
    """
    if experts <= 0:
        raise invalid("num_experts", "1 or more", str(experts))
    ids = topk_idx.to(torch.int64)
    # Ids of -1 count for an additional expert, which no rank has. So do ids out of range, which
    # dispatch reports: here they would be an index fault on the GPU.
    somebody = ids.masked_fill((ids < 0) | (ids >= experts), experts)
    counts = torch.zeros(experts + 1, dtype=torch.int32, device=ids.device)
    counts.scatter_add_(
        0, somebody.flatten(), torch.ones_like(somebody, dtype=torch.int32).flatten()
    )
    in_rank = torch.zeros(ids.size(0), ranks + 1, dtype=torch.bool, device=ids.device)
    there = ranks_of(somebody, experts, ranks).masked_fill(somebody == experts, ranks)
    in_rank.scatter_(1, there, True)
    in_rank = in_rank[:, :ranks].contiguous()
    on_hosts = None
    if hosts is not None and hosts.count > 1:
        rows = torch.zeros(ids.size(0), hosts.count, dtype=torch.int32, device=ids.device)
        rows.index_add_(1, hosts.on_device, in_rank.to(torch.int32))
        on_hosts = (rows > 0).sum(0, dtype=torch.int32)
    return Layout(in_rank.sum(0, dtype=torch.int32), on_hosts, counts[:experts], in_rank)


def one_expert_a_rank(is_token_in_rank: torch.Tensor, experts: int) -> torch.Tensor:
    """Returns expert ids that send each token to its ranks, for a dispatch without ids.

    Args:
        is_token_in_rank: [tokens, ranks] bool.

    Returns:
        [tokens, ranks] int32: the first expert of each of the token's ranks, -1 for the others.
    """
    ranks = is_token_in_rank.size(1)
    if experts < ranks:
        raise invalid("topk_idx", "given where some ranks hold no expert", "None")
    first = first_experts(experts, ranks, is_token_in_rank.device)[:-1]
    return torch.where(is_token_in_rank, first, -1).contiguous()
