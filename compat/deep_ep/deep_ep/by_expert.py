"""Weights in their two layouts: per choice of a received row, and per row by expert."""

from __future__ import annotations

import torch

import tokenyard


def weights_of_rows(
    rows: tokenyard.ExpertRows[torch.Tensor], weights: torch.Tensor
) -> torch.Tensor:
    """Returns weights [rows, topk] from [rows by expert], 0 for choices on other ranks."""
    slots = rows.row_of_choice
    picked = weights[slots.clamp(min=0).flatten().to(torch.int64)].view(slots.shape)
    return picked.where(slots >= 0, 0)


def weights_by_expert(
    rows: tokenyard.ExpertRows[torch.Tensor], weights: torch.Tensor
) -> torch.Tensor:
    """Returns weights [rows by expert] from [rows, topk], 0 for padding."""
    slots = rows.row_of_choice.flatten().to(torch.int64)
    # Choices on other ranks go to an additional place.
    places = weights.new_zeros(rows.rows + 1)
    places.scatter_(0, slots.where(slots >= 0, rows.rows), weights.flatten())
    return places[:-1]
