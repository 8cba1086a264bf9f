"""The MoE layer in torch: gradients against a dense layer, and operators that torch can compile."""

from __future__ import annotations

import doctest
import gc
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import world_alone

import tokenyard

try:
    import torch
except ModuleNotFoundError:
    torch = None  # Skipped test by test: a file without tests counts as a failure.
else:
    from tokenyard.moe import Exchange, MoE, exchange, operators, routes

pytestmark = pytest.mark.skipif(torch is None, reason="needs torch")

EXPERTS, TOPK, HIDDEN, INNER, TOKENS = 8, 3, 32, 16, 12


@pytest.fixture(params=["host", "cuda"])
def run(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """Runs a program on ranks, with tensors on the world's device."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")

    def run(program: Callable[[tokenyard.World], Any], ranks: int, hosts: int = 1) -> list[Any]:
        if request.param == "cuda" and ranks > torch.cuda.device_count():
            # A GPU's backward passes share a thread of torch's: the first would wait there for the
            # others, which come after it.
            pytest.skip("ranks that go backward need a GPU each")

        def rank_main(world: tokenyard.World) -> Any:
            index = world.device_index
            if index is not None:
                torch.cuda.set_device(index)
            with torch.device("cpu" if index is None else f"cuda:{index}"):
                return program(world)

        return tokenyard.launch(
            rank_main, ranks=ranks, hosts=hosts, device=request.param, timeout=60
        )

    return run


def expert_parallel(world: tokenyard.World, **sizes: int) -> tokenyard.ExpertParallel:
    sizes = dict(experts=EXPERTS, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS) | sizes
    return tokenyard.ExpertParallel(world, **sizes)


def tokens_of(rank: int) -> Any:
    """Returns tokens, a different number on each rank, none on the third."""
    count = (TOKENS, 5, 0, 7)[rank]
    return torch.randn(
        count, HIDDEN, generator=torch.Generator("cpu").manual_seed(rank), device="cpu"
    )


def dense(layer: Any, x: Any) -> Any:
    """Computes the layer with all experts, without an exchange."""
    weights, picks = (x @ layer.gate).softmax(-1).topk(TOPK, sorted=False)
    weights = weights / weights.sum(-1, keepdim=True)
    out = torch.zeros_like(x)
    for expert in range(EXPERTS):
        weight = (weights * (picks == expert)).sum(-1, keepdim=True)
        out = out + torch.nn.functional.gelu(x @ layer.up[expert]) @ layer.down[expert] * weight
    return out


# 3 ranks do not divide the experts.
@pytest.mark.parametrize(
    ("ranks", "hosts"), [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (3, 3), (4, 2)]
)
def test_gradients_are_those_of_a_dense_layer(
    run: Callable[..., Any], ranks: int, hosts: int
) -> None:
    def program(world: tokenyard.World) -> list[Any]:
        layer = MoE(expert_parallel(world), inner=INNER, seed=3).to(torch.get_default_device())
        x = tokens_of(world.rank).to(torch.get_default_device()).requires_grad_()
        out = layer(x)
        (out * torch.arange(HIDDEN)).sum().backward()
        parts = [out, x.grad, layer.gate.grad, layer.up.grad, layer.down.grad]
        return [part.detach().cpu() for part in parts]

    def alone(world: tokenyard.World) -> list[Any]:
        layer = MoE(expert_parallel(world, tokens_max=64), inner=INNER, seed=3)
        x = torch.cat([tokens_of(rank) for rank in range(ranks)]).requires_grad_()
        out = dense(layer, x)
        (out * torch.arange(HIDDEN)).sum().backward()
        return [out.detach(), x.grad, layer.gate.grad, layer.up.grad, layer.down.grad]

    expected = tokenyard.launch(alone, ranks=1)[0]
    seen = list(zip(*run(program, ranks, hosts), strict=True))
    gates = sum(seen[2])
    together = [
        torch.cat(seen[0]),
        torch.cat(seen[1]),
        gates,
        torch.cat(seen[3]),
        torch.cat(seen[4]),
    ]
    for mine, theirs in zip(together, expected, strict=True):
        # Sums of large terms may cancel, so errors are relative to the terms.
        atol = 1e-5 * theirs.abs().max().item()
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=atol)


def test_weights_and_picks_of_nobody(run: Callable[..., Any]) -> None:
    """A weight's gradient comes from its rows; a choice of -1 has none."""

    def program(world: tokenyard.World) -> None:
        there_and_back = Exchange(expert_parallel(world, topk=2))
        x = torch.ones(3, HIDDEN, requires_grad=True)
        weights = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
        picks = torch.tensor([[0, EXPERTS - 1], [1, -1], [-1, -1]])
        there = there_and_back.dispatch(x, picks, weights)
        # Weights of experts on other ranks have no effect, however they are used.
        rows = there.x * (2 * there.topk_weights + there.topk_idx).sum(1, keepdim=True)
        assert there.tokens == 3
        there_and_back.combine(rows, there).sum().backward()
        expected = torch.full((3, 2), 2.0 * HIDDEN)
        expected[picks < 0] = 0
        assert torch.equal(weights.grad, expected)
        assert x.grad is not None
        assert (x.grad[2] == 0).all()

    run(program, 2)


def test_routes_end_with_their_tensors(run: Callable[..., Any]) -> None:
    def program(world: tokenyard.World) -> None:
        layer = MoE(expert_parallel(world), inner=INNER).to(torch.get_default_device())
        for _ in range(3):
            layer(tokens_of(0).to(torch.get_default_device()).requires_grad_()).sum().backward()

    run(program, 1)
    gc.collect()
    assert not routes._routes


@pytest.fixture
def alone() -> Iterator[tokenyard.World]:
    """Makes a world of one rank on this thread.

    torch's compiler keeps state on its thread, and crashes if that has ended.
    """
    with world_alone() as world:
        yield world
    torch._dynamo.reset()


def test_torch_checks_the_operators(alone: tokenyard.World) -> None:
    checked = Exchange(expert_parallel(alone))
    x = torch.randn(TOKENS, HIDDEN)
    weights, picks = torch.rand(TOKENS, EXPERTS).topk(TOPK)
    there = checked.dispatch(x, picks, weights)
    rows, ticket = there.x.clone(), there.ticket
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    for operator, inputs in (
        (operators.dispatch, (x, picks, weights, checked._number)),
        (operators.dispatch_again, (x, ticket, len(rows))),
        (operators.combine, (rows, ticket, TOKENS)),
        (operators.combine_with_weights, (rows, there.topk_weights, ticket, TOKENS)),
    ):
        torch.library.opcheck(operator, inputs, test_utils=checks)


def test_compiled_without_a_break_in_the_graph(
    alone: tokenyard.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from functorch.compile import make_boxed_func
    from torch._dynamo import config
    from torch._dynamo.backends.common import aot_autograd

    monkeypatch.setattr(config, "capture_dynamic_output_shape_ops", True)
    called: list[str] = []

    def noted(graph: Any, inputs: Any) -> Any:
        called.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    layer = MoE(expert_parallel(alone), inner=INNER)
    x = tokens_of(0).requires_grad_()
    wanted = [x, layer.gate, layer.up, layer.down]
    expected = layer(x)
    gradients = torch.autograd.grad(expected.sum(), wanted)
    compiled = torch.compile(layer, fullgraph=True, backend=aot_autograd(fw_compiler=noted))
    out = compiled(x)
    torch.testing.assert_close(out, expected)
    for mine, theirs in zip(torch.autograd.grad(out.sum(), wanted), gradients, strict=True):
        torch.testing.assert_close(mine, theirs)
    for name in ("dispatch", "combine", "dispatch_again", "combine_with_weights"):
        assert f"tokenyard.{name}.default" in called


def test_what_the_documentation_runs() -> None:
    names = dict(tokenyard=tokenyard, torch=torch, ExpertParallel=tokenyard.ExpertParallel)
    assert doctest.testmod(exchange, extraglobs=names)[:2] == (0, 2)
    page = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    program, printed = code.rsplit("print(", 1)
    found = re.fullmatch(r"(.*)\)  # (.*)\n", printed)
    assert found
    expression, expected = found.groups()
    here: dict[str, Any] = {}
    exec(program, here)
    assert eval(expression, here) == eval(expected, here)
