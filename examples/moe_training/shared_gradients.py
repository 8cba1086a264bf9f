"""Sums, over the ranks, the gradients of the parameters that every rank holds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import tokenyard


class SharedGradients:
    """One vector of which these gradients are views, so that one operation sums all of them."""

    def __init__(self, parameters: list[nn.Parameter], group: tokenyard.Group) -> None:
        self._group = group
        sizes = [parameter.numel() for parameter in parameters]
        self._vector = torch.zeros(sum(sizes), device=parameters[0].device)
        self._sent = torch.zeros(sum(sizes))
        for parameter, part in zip(parameters, self._vector.split(sizes), strict=True):
            parameter.grad = part.view_as(parameter)

    def clear(self) -> None:
        self._vector.zero_()

    def add_up(self, loss: Tensor) -> float:
        """Replaces the gradients by their sums over the ranks; returns the sum of the losses."""
        self._sent.copy_(self._vector)
        losses = loss.detach().cpu().reshape(1)
        self._group.all_reduce([self._sent.numpy(), losses.numpy()], "sum").wait()
        self._vector.copy_(self._sent)
        return losses.item()
