"""The MoE layer as trainers use it: autocast, loss scaling, half precision, checkpointing, and
ranks that disagree about gradients."""

from __future__ import annotations

from typing import Any

import pytest

import tokenyard

try:
    import torch
except ModuleNotFoundError:
    torch = None  # Skipped test by test: a file without tests counts as a failure.
else:
    from torch.utils.checkpoint import checkpoint

    from tokenyard.moe import Exchange, MoE

pytestmark = pytest.mark.skipif(torch is None, reason="needs torch")

EXPERTS, TOPK, HIDDEN, INNER, TOKENS = 4, 2, 32, 16, 12
RANKS = 2


def exchange_of(world: tokenyard.World) -> tokenyard.ExpertParallel:
    return tokenyard.ExpertParallel(
        world, experts=EXPERTS, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS
    )


def tokens_of(rank: int) -> Any:
    return torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(rank))


def trained(world: tokenyard.World, dtype: Any, forward: Any) -> list[Any]:
    """Returns output, and gradients of x, gate and experts, of a step with this forward pass."""
    layer = MoE(exchange_of(world), inner=INNER, seed=3, dtype=dtype)
    x = tokens_of(world.rank).to(dtype).requires_grad_()
    out = forward(layer, x)
    out.float().square().mean().backward()
    return [out.detach(), x.grad, layer.gate.grad, layer.up.grad, layer.down.grad]


def float32_step(world: tokenyard.World) -> list[Any]:
    return trained(world, torch.float32, lambda layer, x: layer(x))


def assert_near_float32(program: Any, tolerance: float) -> list[list[Any]]:
    """Checks that results of `program` are float32's up to the rounding of a shorter dtype."""
    seen = tokenyard.launch(program, ranks=RANKS, timeout=60)
    expected = tokenyard.launch(float32_step, ranks=RANKS, timeout=60)
    for mine, exact in zip(seen, expected, strict=True):
        for part, whole in zip(mine, exact, strict=True):
            error = (part.float() - whole).abs().max() / whole.abs().max()
            assert error < tolerance, error
    return seen


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_autocast_computes_in_its_dtype_and_keeps_parameters_float32(name: str) -> None:
    dtype = getattr(torch, name)

    def program(world: tokenyard.World) -> list[Any]:
        def forward(layer: Any, x: Any) -> Any:
            with torch.autocast("cpu", dtype=dtype):
                return layer(x)

        return trained(world, torch.float32, forward)

    for out, *gradients in assert_near_float32(program, 0.05):
        assert out.dtype == dtype
        assert {gradient.dtype for gradient in gradients} == {torch.float32}


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_a_layer_of_a_shorter_dtype_keeps_it(name: str) -> None:
    dtype = getattr(torch, name)

    def program(world: tokenyard.World) -> list[Any]:
        layer = MoE(exchange_of(world), inner=INNER, seed=3).to(dtype)  # As model.half() does it.
        x = tokens_of(world.rank).to(dtype).requires_grad_()
        out = layer(x)
        out.float().square().mean().backward()
        return [out.detach(), x.grad, layer.gate.grad, layer.up.grad, layer.down.grad]

    for parts in assert_near_float32(program, 0.05):
        assert {part.dtype for part in parts} == {dtype}


def test_autocast_of_tokens_that_are_bfloat16_already() -> None:
    def program(world: tokenyard.World) -> None:
        layer = MoE(exchange_of(world), inner=INNER)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer(tokens_of(world.rank).bfloat16()).dtype == torch.bfloat16

    tokenyard.launch(program, ranks=RANKS, timeout=60)


def test_a_gradient_scaler_unscales_and_steps_alike() -> None:
    def program(world: tokenyard.World) -> list[Any]:
        layer = MoE(exchange_of(world), inner=INNER, seed=3)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        optimizer = torch.optim.SGD(layer.expert_parameters(), lr=0.5)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = layer(tokens_of(world.rank)).float().square().mean()
        scaler.scale(loss).backward()
        before = [parameter.detach().clone() for parameter in layer.expert_parameters()]
        scaler.step(optimizer)
        scaler.update()
        after = layer.expert_parameters()
        return [(old - new).detach() for old, new in zip(before, after, strict=True)]

    steps = tokenyard.launch(program, ranks=RANKS, timeout=60)
    exact = tokenyard.launch(float32_step, ranks=RANKS, timeout=60)
    for step, (*_, up, down) in zip(steps, exact, strict=True):
        for moved, gradient in zip(step, (up, down), strict=True):
            assert (moved - 0.5 * gradient).abs().max() < 0.05 * gradient.abs().max()


@pytest.mark.parametrize(("x", "parameters"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_dtypes_that_do_not_fit_are_refused_before_any_row_moves(x: str, parameters: str) -> None:
    def program(world: tokenyard.World) -> None:
        layer = MoE(exchange_of(world), inner=INNER, dtype=getattr(torch, parameters))
        with pytest.raises(tokenyard.InvalidArgument, match=r"autocast") as refused:
            layer(tokens_of(world.rank).to(getattr(torch, x)))
        assert refused.value.argument == "x"
        assert refused.value.seen == f"torch.{x}"
        assert parameters in refused.value.expected
        layer(tokens_of(world.rank).to(getattr(torch, parameters)))  # The exchange still works.

    tokenyard.launch(program, ranks=RANKS, timeout=60)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_computes_the_same(reentrant: bool) -> None:
    def program(world: tokenyard.World) -> list[Any]:
        def forward(layer: Any, x: Any) -> Any:
            return checkpoint(layer, x, use_reentrant=reentrant)

        return trained(world, torch.float32, forward)

    seen = tokenyard.launch(program, ranks=RANKS, timeout=60)
    expected = tokenyard.launch(float32_step, ranks=RANKS, timeout=60)
    for mine, exact in zip(seen, expected, strict=True):
        for part, whole in zip(mine, exact, strict=True):
            assert torch.equal(part, whole)


def test_checkpointing_under_autocast() -> None:
    def program(world: tokenyard.World) -> list[Any]:
        def forward(layer: Any, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return checkpoint(layer, x, use_reentrant=False)

        return trained(world, torch.float32, forward)

    assert_near_float32(program, 0.05)


def test_a_backward_pass_that_a_rank_does_not_run_is_named() -> None:
    """Rank 1's tensors require no gradient, so it has nothing to do in the backward pass."""

    def program(world: tokenyard.World) -> str:
        there_and_back = Exchange(exchange_of(world))
        x = tokens_of(world.rank)
        picks, weights = torch.zeros(TOKENS, TOPK, dtype=torch.int64), torch.ones(TOKENS, TOPK)
        picks[:, 1] = 3
        for call in (1, 2):
            x = x.detach().requires_grad_(world.rank == 0 and call == 2)
            there = there_and_back.dispatch(x, picks, weights)
            home = there_and_back.combine(2 * there.x, there)
        if world.rank == 1:
            return "nothing to differentiate"
        with pytest.raises((tokenyard.PeerTimeout, tokenyard.PeerLost)) as lost:
            home.sum().backward()
        assert lost.value.rank == 1
        return str(lost.value)

    told, _ = tokenyard.launch(program, ranks=RANKS, timeout=2)
    assert "the backward pass of combine 2 of this exchange" in told
    assert "on rank 1, too, make x or topk_weights require a gradient" in told


def test_a_double_backward_is_refused_in_a_sentence() -> None:
    def program(world: tokenyard.World) -> None:
        layer = MoE(exchange_of(world), inner=INNER)
        x = tokens_of(world.rank).requires_grad_()
        (gradient,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        with pytest.raises(tokenyard.Unsupported, match="double backward"):
            gradient.square().sum().backward()

    tokenyard.launch(program, ranks=RANKS, timeout=60)
