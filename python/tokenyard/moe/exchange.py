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


class Fp8Dispatched(NamedTuple):
    """FP8 rows that a rank received, and a tensor that stands for them in the autograd graph."""

    x: Tensor
    """[rows, hidden] float8_e4m3fn; has no gradients."""
    scales: Tensor
    """[rows, hidden / 128] float32: a value is x times the scale of its group."""
    gradient: Tensor
    """[rows, hidden] of the tokens' dtype, zeros without memory of their own. Take it as an input
    of the GEMM's `torch.autograd.Function`, and return the rows' gradient for it."""
    topk_idx: Tensor
    """As of `Dispatched`."""
    topk_weights: Tensor
    """As of `Dispatched`; has gradients."""
    ticket: Tensor
    """As of `Dispatched`."""
    tokens: int
    """Number of tokens that this rank dispatched."""

    def dequantized(self) -> Tensor:
        """Returns [rows, hidden] of the tokens' dtype, with gradients: for GEMMs without FP8."""
        groups = self.x.float().view(*self.scales.shape, operators.FP8_GROUP)
        values = (groups * self.scales[..., None]).view(self.x.shape)
        return values.to(self.gradient.dtype) + self.gradient


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

    def dispatch_fp8(self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor) -> Fp8Dispatched:
        """Sends each token in FP8, as `dispatch` does otherwise. Collective; waits for the counts.

        Forward, rows travel as float8_e4m3fn with a float32 scale per 128 channels: its largest
        magnitude / 448. Gradients and combine stay in bfloat16, and the cast's gradient is taken to
        be the identity, as in the training of DeepSeek-V3.

        Args:
            x: [tokens, hidden] bfloat16; hidden is a multiple of 128.
            topk_idx, topk_weights: as `dispatch`.

        Raises:
            As `ExpertParallel.dispatch`.
        """
        gradient, ids, weights, ticket, rows, scales = operators.dispatch_fp8(
            x, topk_idx, topk_weights, self._number
        )
        return Fp8Dispatched(rows, scales, gradient, ids, weights, ticket, x.size(0))

    def combine(self, y: Tensor, dispatched: Dispatched | Fp8Dispatched) -> Tensor:
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
