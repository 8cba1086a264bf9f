"""Dispatch and combine for torch's autograd and torch.compile."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ..expert_parallel import ExpertParallel
from . import operators, routes


class Dispatched(NamedTuple):
    """Rows that a rank received, as differentiable tensors."""

    x: Tensor
    """[rows, hidden] in the dispatched dtype; has gradients."""
    topk_idx: Tensor
    """[rows, topk] int32: local expert index, -1 if the expert is on another rank."""
    topk_weights: Tensor
    """[rows, topk] float32: routing weights, 0 if the expert is on another rank; has gradients."""
    ticket: Tensor
    """[1] int64: identifies the route for `combine`, and keeps it alive."""
    tokens: int
    """Number of tokens that this rank dispatched."""


class Exchange:
    """Dispatch and combine of an ExpertParallel, as torch operators.

    They support autograd (dispatch's gradient is a combine, and the other way round; weights have
    gradients too) and do not break the graphs of torch.compile. All ranks must make the same calls
    in the same order, in their backward passes too.

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
        """Sends each token to the ranks that hold its experts. Collective; waits for the counts.

        Args:
            x: [tokens, hidden]; bfloat16, float16 or float32 if it requires gradients.
            topk_idx: [tokens, topk] int32 or int64: expert ids, -1 for none.
            topk_weights: [tokens, topk] float32.

        Raises:
            As `ExpertParallel.dispatch`.
        """
        rows, ids, weights, ticket = operators.dispatch(x, topk_idx, topk_weights, self._number)
        return Dispatched(rows, ids, weights, ticket, x.size(0))

    def combine(self, y: Tensor, dispatched: Dispatched) -> Tensor:
        """Returns to each token the sum of its rows of y. Collective.

        Args:
            y: [rows, hidden] results, with weights applied.
            dispatched: the dispatch's result.

        Returns:
            [tokens, hidden] of y's dtype.

        Raises:
            As `ExpertParallel.combine`.
        """
        home: Tensor = operators.combine(y, dispatched.ticket, dispatched.tokens)
        return home
