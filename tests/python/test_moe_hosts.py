"""The MoE layer in torch between hosts, compiled: processes over TCP, since torch's compiler keeps
state on its thread. Its gradients are compared in test_moe_layer_torch.py."""

from __future__ import annotations

import pytest

import tokenyard

try:
    import torch
except ModuleNotFoundError:
    torch = None  # Skipped test by test: a file without tests counts as a failure.
else:
    from tokenyard.moe import MoE

pytestmark = pytest.mark.skipif(torch is None, reason="needs torch")

EXPERTS, TOPK, HIDDEN, INNER, TOKENS = 8, 3, 32, 16, 12


def compile_and_compare(world: tokenyard.World) -> None:
    """Compares a compiled layer's results and gradients with those of the layer itself."""
    from torch._dynamo import config

    config.capture_dynamic_output_shape_ops = True
    exchange = tokenyard.ExpertParallel(
        world, experts=EXPERTS, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS
    )
    layer = MoE(exchange, inner=INNER, seed=3)
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(world.rank))
    x.requires_grad_()
    wanted = [x, layer.gate, layer.up, layer.down]
    out = layer(x)
    gradients = torch.autograd.grad(out.sum(), wanted)
    again = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(again, out)
    for mine, theirs in zip(torch.autograd.grad(again.sum(), wanted), gradients, strict=True):
        torch.testing.assert_close(mine, theirs)
    world.barrier()


def test_a_compiled_layer_is_the_same_between_hosts() -> None:
    tokenyard.launch(compile_and_compare, ranks=2, processes=True, hosts=2, timeout=240)
