"""FP8 rows under autograd: cast and scales forward, gradients and sums in bfloat16."""

from __future__ import annotations

from typing import Any

import pytest

import tokenyard

try:
    import torch
except ModuleNotFoundError:
    torch = None  # Skipped test by test: a file without tests counts as a failure.
else:
    from tokenyard.moe import Exchange, operators

pytestmark = pytest.mark.skipif(torch is None, reason="needs torch")

EXPERTS, TOPK, HIDDEN = 6, 2, 256
RANKS = 2


def made(world: tokenyard.World) -> tuple[Any, Any, Any, Any]:
    """Returns an exchange, and a rank's tokens, picks and weights; ranks have 8 and 5 tokens."""
    generator = torch.Generator().manual_seed(world.rank)
    tokens = (8, 5)[world.rank]
    x = torch.randn(tokens, HIDDEN, generator=generator).to(torch.bfloat16).requires_grad_()
    weights, picks = torch.rand(tokens, EXPERTS, generator=generator).topk(TOPK)
    plain = tokenyard.ExpertParallel(world, experts=EXPERTS, hidden=HIDDEN, topk=TOPK, tokens_max=8)
    return Exchange(plain), x, picks, weights.requires_grad_()


def test_rows_are_fp8_and_gradients_those_of_bfloat16_rows() -> None:
    def program(world: tokenyard.World) -> None:
        exchange, x, picks, weights = made(world)
        there = exchange.dispatch_fp8(x, picks, weights)
        cast = exchange.expert_parallel.dispatch(x.detach(), picks, weights.detach(), rows="fp8")
        assert torch.equal(there.x.view(torch.uint8), cast.x.view(torch.uint8))
        assert torch.equal(there.scales, cast.scales)
        assert torch.equal(there.topk_idx, cast.topk_idx)
        assert not there.x.requires_grad
        assert not there.scales.requires_grad
        assert there.gradient.untyped_storage().nbytes() == 2, "no memory of its own"

        # Rows' gradients that depend on rank and row, and by way of the weights on the values.
        factor = torch.arange(1, len(there.x) + 1)[:, None].to(torch.bfloat16) * (world.rank + 1)
        values = there.dequantized()
        assert values.dtype == torch.bfloat16
        exact = there.x.double().view(*there.scales.shape, 128) * there.scales[..., None].double()
        assert torch.equal(values, exact.float().view(values.shape).to(torch.bfloat16))

        def train(rows: Any, there: Any) -> list[Any]:
            y = rows * factor * there.topk_weights.sum(1, keepdim=True).to(torch.bfloat16)
            out = exchange.combine(y, there)
            assert out.dtype == torch.bfloat16
            out.square().sum().backward()
            found = [out.detach(), x.grad, weights.grad]
            x.grad = weights.grad = None
            return found

        found = train(values, there)
        # The same without a cast, of tokens that already are what the cast makes of them.
        with torch.no_grad():
            back = cast_and_back(x)
            x.copy_(back)
        plain = exchange.dispatch(x, picks, weights)
        assert torch.equal(plain.x, values)
        for mine, theirs in zip(found, train(plain.x, plain), strict=True):
            assert torch.equal(mine, theirs)
            assert mine.abs().sum() > 0

    tokenyard.launch(program, ranks=RANKS)


def cast_and_back(x: Any) -> Any:
    groups = x.float().view(len(x), -1, 128)
    scales = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
    cast = (groups * (1 / scales)).to(torch.float8_e4m3fn)
    return (cast.float() * scales).view(x.shape).to(torch.bfloat16)


def test_a_gemm_of_ones_own_gives_the_rows_gradient_to_the_stand_in() -> None:
    class Gemm(torch.autograd.Function if torch else object):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, gradient: Any, x: Any, scales: Any, weight: Any) -> Any:
            ctx.save_for_backward(weight)
            values = x.float().view(*scales.shape, 128) * scales[..., None]
            return (values.view(x.shape) @ weight.float()).to(torch.bfloat16)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad @ ctx.saved_tensors[0].T, None, None, None

    def program(world: tokenyard.World) -> None:
        exchange, x, picks, weights = made(world)
        there = exchange.dispatch_fp8(x, picks, weights)
        weight = torch.eye(HIDDEN, dtype=torch.bfloat16) * 2
        exchange.combine(
            Gemm.apply(there.gradient, there.x, there.scales, weight), there
        ).sum().backward()
        per_rank = EXPERTS // RANKS
        ranks_of_token = [len(set((each // per_rank).tolist())) for each in picks]
        assert torch.equal(
            x.grad, 2.0 * torch.tensor(ranks_of_token)[:, None].expand(x.shape).bfloat16()
        )

    tokenyard.launch(program, ranks=RANKS)


def test_torch_checks_the_operator() -> None:
    def program(world: tokenyard.World) -> None:
        exchange, x, picks, weights = made(world)
        checks = ("test_schema", "test_autograd_registration", "test_faketensor")
        inputs = (x, picks, weights, exchange._number)
        torch.library.opcheck(operators.dispatch_fp8, inputs, test_utils=checks)

    tokenyard.launch(program, ranks=1)


def test_rows_without_whole_groups_are_refused() -> None:
    def program(world: tokenyard.World) -> None:
        plain = tokenyard.ExpertParallel(world, experts=1, hidden=192, topk=1, tokens_max=1)
        x = torch.ones(1, 192, dtype=torch.bfloat16)
        with pytest.raises(tokenyard.errors.InvalidArgument, match="128"):
            Exchange(plain).dispatch_fp8(x, torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1))

    tokenyard.launch(program, ranks=1)
