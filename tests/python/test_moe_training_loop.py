"""The MoE layer in a training loop: with DataLoader workers, and compiled with batches of different
lengths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ranks import world_alone

import tokenyard

try:
    import torch
except ModuleNotFoundError:
    torch = None  # Skipped test by test: a file without tests counts as a failure.
else:
    from torch.utils.data import DataLoader

    from tokenyard.moe import MoE

pytestmark = pytest.mark.skipif(torch is None, reason="needs torch")

HIDDEN, ROWS = 32, 24


def layer_on(world: tokenyard.World) -> Any:
    exchange = tokenyard.ExpertParallel(world, experts=4, hidden=HIDDEN, topk=2, tokens_max=64)
    return MoE(exchange, inner=16)


class Numbers:
    """A dataset of rows that encode their index."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return torch.full((HIDDEN,), float(index))


def train(world: tokenyard.World) -> float:
    """Forks DataLoader workers while the exchange exists; their exit must not affect it."""
    layer, total = layer_on(world), 0.0
    for _ in range(2):
        for batch in DataLoader(
            Numbers(), batch_size=6, num_workers=2, multiprocessing_context="fork"
        ):
            layer(batch.requires_grad_()).sum().backward()
            total += batch[:, 0].sum().item()
    return total


@pytest.mark.parametrize("processes", [False, True])
def test_dataloader_workers_are_forked_beside_an_exchange(processes: bool) -> None:
    totals = tokenyard.launch(train, ranks=2, processes=processes, timeout=60)
    assert totals == [2.0 * sum(range(ROWS))] * 2


@pytest.fixture
def alone() -> Iterator[tokenyard.World]:
    """A world of one rank on this thread, which torch's compiler needs to live on."""
    with world_alone() as world:
        yield world
    torch._dynamo.reset()


def test_a_compiled_layer_takes_batches_of_any_length(
    alone: tokenyard.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo import config
    from torch._dynamo.testing import CompileCounterWithBackend

    monkeypatch.setattr(config, "capture_dynamic_output_shape_ops", True)
    counter = CompileCounterWithBackend("aot_eager")
    layer = layer_on(alone)
    compiled = torch.compile(layer, fullgraph=True, backend=counter, dynamic=True)
    for tokens in (5, 9, 1, 0, 12, 33, 64):
        x = torch.randn(tokens, HIDDEN, requires_grad=True)
        torch.testing.assert_close(compiled(x), layer(x))
    assert counter.frame_count <= 3  # One for 0, one for 1, one for all other lengths.
