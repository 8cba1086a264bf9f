"""An exchange whose calls torch differentiates and compiles."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ..expert_parallel import ExpertParallel
from . import operators, routes


class Dispatched(NamedTuple):
    """What a rank received, as tensors that gradients pass through."""

    x: Tensor
    """[rows, hidden] of the dtype that was dispatched."""
    topk_idx: Tensor
    """[rows, topk] int32: experts as numbered on this rank, -1 where the expert is elsewhere."""
    topk_weights: Tensor
    """[rows, topk] float32: their weights, 0 where the expert is elsewhere."""
    ticket: Tensor
    """For `combine`: [1] int64, which stands for the route and keeps it."""
    tokens: int
    """How many this rank dispatched."""


class Exchange:
    """dispatch and combine of an ExpertParallel, as operators of torch.

    They are differentiated (dispatch's gradient is a combine, and the other way round; weights have
    gradients too) and stay whole in the graphs of torch.compile. All ranks make the same calls in
    the same order; so do their backward passes.

    >>> def layer(world):
    ...     exchange = Exchange(
    ...         ExpertParallel(world, experts=2, hidden=8, topk=1, tokens_max=4)
    ...     )
    ...     x = torch.full((3, 8), 2.0, dtype=torch.bfloat16, requires_grad=True)
    ...     there = exchange.dispatch(x, torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1))
    ...     exchange.combine(3 * there.x, there).sum().backward()
    ...     return len(there.x), x.grad[0, 0].item()
    >>> tokenyard.launch(layer, ranks=2)
    [(6, 3.0), (0, 3.0)]
    """

    def __init__(self, expert_parallel: ExpertParallel) -> None:
        self.expert_parallel = expert_parallel
        self._number = routes.number_of(expert_parallel)

    def dispatch(self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor) -> Dispatched:
        """As `ExpertParallel.dispatch`."""
        rows, ids, weights, ticket = operators.dispatch(x, topk_idx, topk_weights, self._number)
        return Dispatched(rows, ids, weights, ticket, x.size(0))

    def combine(self, y: Tensor, dispatched: Dispatched) -> Tensor:
        """As `ExpertParallel.combine`: for every token the sum of its rows of y."""
        home: Tensor = operators.combine(y, dispatched.ticket, dispatched.tokens)
        return home
