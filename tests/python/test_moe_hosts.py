"""The MoE layer in torch between hosts: processes over TCP, compiled and not."""

from __future__ import annotations

from typing import Any

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


def compiled_and_not(world: tokenyard.World) -> list[Any]:
    """Returns results and gradients of a layer, and whether a compiled one has the same."""
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
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    again = compiled(x)
    torch.testing.assert_close(again, out)
    for mine, theirs in zip(torch.autograd.grad(again.sum(), wanted), gradients, strict=True):
        torch.testing.assert_close(mine, theirs)
    world.barrier()
    return [part.detach().numpy() for part in (out, gradients[0])]


def test_a_compiled_layer_is_the_same_between_hosts() -> None:
    near, far = (
        tokenyard.launch(compiled_and_not, ranks=2, processes=True, hosts=hosts, timeout=120)
        for hosts in (1, 2)
    )
    for mine, theirs in zip(near, far, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(torch.from_numpy(one), torch.from_numpy(other))
