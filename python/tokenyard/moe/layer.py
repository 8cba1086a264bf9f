"""A mixture-of-experts layer with its experts spread over the ranks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import invalid
from ..expert_parallel import ExpertParallel
from .exchange import Dispatched, Exchange


class MoE(nn.Module):
    """A mixture-of-experts layer: a softmax gate, and experts on all ranks. Collective.

    Every rank holds the whole gate and its own experts. Initial parameters do not depend on the
    number of ranks: each expert is drawn from the seed and its number.

    Under `torch.autocast`, tokens are sent and experts compute in autocast's dtype, which the
    result has too, as with torch's own layers. The gate always computes in float32.

    Args:
        expert_parallel: the exchange; determines experts, hidden and topk.
        inner: elements of an expert's hidden layer.
        seed: seed of all parameters.
        dtype: dtype of the parameters, and of tokens without autocast.
        device: device of the parameters.
    """

    def __init__(
        self,
        expert_parallel: ExpertParallel,
        *,
        inner: int,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        hidden, experts = expert_parallel.hidden, expert_parallel.experts
        self.topk = expert_parallel.topk
        self.exchange = Exchange(expert_parallel)
        self.local_experts = expert_parallel.local_experts
        first = expert_parallel.first_expert
        mine = range(first, first + self.local_experts)
        self.gate = nn.Parameter(_drawn((hidden, experts), seed).to(device, dtype))
        up = _drawn_each((hidden, inner), [seed + 2 * e + 1 for e in mine])
        down = _drawn_each((inner, hidden), [seed + 2 * e + 2 for e in mine])
        self.up = nn.Parameter(up.to(device, dtype))
        self.down = nn.Parameter(down.to(device, dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the layer's output for x [..., hidden], of the same shape. Collective.

        Raises:
            InvalidArgument: x has another dtype than the parameters, and autocast is off.
            PeerTimeout, PeerLost: a rank did not take part, or is gone.
        """
        device = x.device.type
        dtype = self._compute_dtype(x)
        with torch.autocast(device, enabled=False):
            tokens = x.reshape(-1, x.size(-1))
            odds = (tokens.float() @ self.gate.float()).softmax(-1)
            weights, picks = odds.topk(self.topk, sorted=False)
            weights = weights / weights.sum(-1, keepdim=True)
            there = self.exchange.dispatch(tokens.to(dtype), picks, weights)
            return self.exchange.combine(self._experts(there), there).view_as(x)

    def _compute_dtype(self, x: Tensor) -> torch.dtype:
        """Returns the dtype in which tokens are sent and experts compute."""
        if torch.is_autocast_enabled(x.device.type):
            return torch.get_autocast_dtype(x.device.type)
        parameters = self.up.dtype
        if x.dtype != parameters:
            expected = f"{parameters}, the dtype of the layer's parameters"
            how = f"cast one with .to(), or use torch.autocast({x.device.type!r})"
            raise invalid("x", f"{expected} ({how})", str(x.dtype))
        return parameters

    def expert_parameters(self) -> list[nn.Parameter]:
        """Returns the parameters that only this rank holds.

        Their gradients are complete. Gradients of all other parameters are this rank's part, to be
        summed over the ranks.
        """
        return [self.up, self.down]

    def _experts(self, there: Dispatched) -> Tensor:
        """Returns for each row the weighted sum over its experts on this rank."""
        sums = torch.zeros_like(there.x)
        up, down = self.up.to(sums.dtype), self.down.to(sums.dtype)
        for expert in range(self.local_experts):
            rows, picks = (there.topk_idx == expert).nonzero(as_tuple=True)
            inner = nn.functional.gelu(there.x[rows] @ up[expert])
            weights = there.topk_weights[rows, picks, None].to(sums.dtype)
            sums = sums.index_add(0, rows, inner @ down[expert] * weights)
        return sums


def _drawn(shape: tuple[int, int], seed: int) -> Tensor:
    """Returns normal random values, scaled so that a product has the variance of its input."""
    generator = torch.Generator("cpu").manual_seed(seed)
    drawn = torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32)
    scaled: Tensor = drawn / shape[0] ** 0.5
    return scaled


def _drawn_each(shape: tuple[int, int], seeds: list[int]) -> Tensor:
    """Returns [seeds, *shape]; empty if the rank has no experts."""
    if not seeds:
        return torch.empty(0, *shape, device="cpu", dtype=torch.float32)
    return torch.stack([_drawn(shape, seed) for seed in seeds])
