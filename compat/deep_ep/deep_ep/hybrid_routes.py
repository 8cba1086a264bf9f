"""HybridEP's routing maps as choices of an exchange, and back.

A map has a column per expert, an exchange a fixed number of choices per token. A token's choices
are its experts in ascending order, then -1. So results are summed in HybridEP's order, too.
"""

from __future__ import annotations

import torch

import tokenyard

CHOICES_MAX = 256
"""Largest number of choices per token of an exchange."""


def choices_of(routing_map: torch.Tensor, choices: int) -> torch.Tensor:
    """Returns [tokens, choices] int64: experts of each token; the host does not wait.

    A token of more experts gets the id `experts`, which does not exist: a dispatch then raises
    InvalidArgument on all ranks.

    >>> choices_of(torch.tensor([[True, False, True], [False, True, False]]), choices=2).tolist()
    [[0, 2], [1, -1]]
    """
    experts = routing_map.size(1)
    number = torch.arange(experts, device=routing_map.device)
    ids = torch.where(routing_map, number, experts)
    if choices < experts:
        first = ids.sort(1).values[:, : choices + 1]
        ids, more = first[:, :choices], first[:, choices:] < experts
        ids = ids.masked_fill(ids == experts, -1)
        ids[:, :1].masked_fill_(more, experts)
        return ids.contiguous()
    return ids.masked_fill(ids == experts, -1)


def columns_of(table: torch.Tensor, ids: torch.Tensor, first: int = 0) -> torch.Tensor:
    """Returns [rows, choices]: the column of each choice in [rows, columns], 0 for a choice of -1.

    Args:
        first: column of expert 0.
    """
    column = (ids.to(torch.int64) + first).clamp(0, table.size(1) - 1)
    return table.gather(1, column).masked_fill(ids < 0, 0).contiguous()


def table_of(values: torch.Tensor, ids: torch.Tensor, columns: int, first: int = 0) -> torch.Tensor:
    """Returns [rows, columns] with each choice's value in its column, 0 elsewhere."""
    column = torch.where(ids < 0, columns, ids.to(torch.int64) + first)
    table = values.new_zeros(values.size(0), columns + 1)
    return table.scatter_(1, column, values)[:, :columns].contiguous()


def drop_beyond(
    received: tokenyard.Received[torch.Tensor], places: int, alignment: int
) -> torch.Tensor:
    """Drops the choices whose rows by expert would not fit, as HybridEP does.

    The host does not wait. Experts are served in order, and each expert's rows in the order
    received. The received ids and counts, which the route keeps, mark the dropped choices:
    grouping reads them, and so does a later dispatch on the route.

    Returns:
        [1] int32: 1 if anything was dropped.
    """
    ids, counts = received.topk_idx, received.tokens_per_expert_on_device
    experts = counts.size(0)
    padded = (counts + alignment - 1) // alignment * alignment
    begin = padded.cumsum(0) - padded
    kept = (places - begin).clamp(min=0).minimum(counts)
    overflow = (kept < counts).any().to(torch.int32).view(1)
    here = table_of(torch.ones_like(ids), ids, experts)
    row_of_expert = columns_of(here.cumsum(0, dtype=torch.int32), ids)  # From 1.
    limit = columns_of(kept.expand(ids.size(0), experts), ids)
    ids.masked_fill_(row_of_expert > limit, -1)
    counts.copy_(kept)
    return overflow
