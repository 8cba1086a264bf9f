"""The program of one rank: trains on its share of every step's windows."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy

import tokenyard

from .model import BYTES, Model, Shape
from .shared_gradients import SharedGradients
from .text import Text

TELLS = 25
"""Steps between lines of progress."""


def train(
    world: tokenyard.World, job: dict[str, Any], text: Text, shape: Shape, steps: int
) -> list[float]:
    """Trains; returns the mean loss of every step over all ranks' windows."""
    torch.set_num_threads(1)  # The ranks already share the machine's cores.
    device = "cpu" if world.device_index is None else f"cuda:{world.device_index}"
    share = shape.rows // world.size
    exchange = tokenyard.ExpertParallel(
        world,
        experts=shape.experts,
        hidden=shape.hidden,
        topk=shape.topk,
        tokens_max=share * shape.window,
    )
    model = Model(shape, exchange).to(device)
    if world.topology.hosts > 1:
        job |= dict(host=f"host {world.topology.host_of[world.rank]}")
    with tokenyard.Collectives.connect(rank=world.rank, size=world.size, **job) as ranks:
        shared = SharedGradients(model.shared_parameters(), ranks.world())
        optimizer = torch.optim.AdamW(model.parameters(), shape.rate, eps=1e-5)
        losses = []
        for step in range(steps):
            letters, follows = (
                part[world.rank * share :][:share].to(device)
                for part in text.batch(step, shape.rows)
            )
            shared.clear()
            for parameter in model.expert_parameters():
                parameter.grad = None
            scores = model(letters).view(-1, BYTES)
            loss = cross_entropy(scores, follows.reshape(-1), reduction="sum")
            loss = loss / (shape.rows * shape.window)
            loss.backward()
            losses.append(shared.add_up(loss))
            optimizer.step()
            if world.rank == 0 and (step + 1) % TELLS == 0:
                print(f"  step {step + 1:4} of {steps}: loss {losses[-1]:.4f}", flush=True)
    world.barrier("training: no rank of another host waits for this one")
    exchange.close()
    return losses
