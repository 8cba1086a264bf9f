"""Tensors on GPUs travel between hosts: dispatch and combine, compared with sums of torch, and a
megakernel's copies, compared with the numbers that were copied.

Run it on a machine with one GPU or two, with the package and torch installed:

    python tests/python/gpu_between_hosts.py

Its exit code is 0 if all results are right. On one GPU the ranks are threads of a process, on two
also processes; both count as two hosts, so that the network lies between them. With
`--device host` it runs without GPUs, to try the script itself.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from megakernel_programs import add_up

EXPERTS, HIDDEN, TOPK, TOKENS, RANKS = 16, 2048, 4, 300, 2


def inputs_of(rank: int, call: int) -> tuple[Any, Any]:
    """Returns a rank's rows and choices, the same on every rank."""
    import torch

    generator = torch.Generator().manual_seed(100 * call + rank)
    rows = torch.randint(-8, 9, (TOKENS - 37 * rank, HIDDEN), generator=generator)
    scores = torch.rand(len(rows), EXPERTS, generator=generator)
    return rows.to(torch.bfloat16), scores.topk(TOPK).indices


def exchange(world: Any, device: str) -> str:
    """Returns how the other rank is reached, after three calls whose results were right."""
    import torch

    import tokenyard

    where = f"cuda:{world.device_index}" if device == "cuda" else "cpu"
    held = EXPERTS // world.size
    layer = tokenyard.ExpertParallel(
        world, experts=EXPERTS, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS
    )
    other = tokenyard.ExpertParallel(
        world, experts=EXPERTS, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS
    )
    for call in range(3):
        for each in (layer, other):
            x, ids = inputs_of(world.rank, call)
            received = each.dispatch(x.to(where), ids.to(where))
            each.wait()
            expected = []
            for source in range(world.size):
                rows, choices = inputs_of(source, call)
                expected.append(rows[(choices // held == world.rank).any(dim=1)])
            if not torch.equal(received.x.cpu(), torch.cat(expected)):
                raise AssertionError(f"rank {world.rank}, call {call}: other rows than were sent")
            home = each.combine(received.x * (world.rank + 1), received)
            each.wait()
            ranks = torch.stack([(ids // held == rank).any(dim=1) for rank in range(world.size)])
            factors = (ranks * torch.arange(1, world.size + 1)[:, None]).sum(dim=0)
            if not torch.equal(home.cpu(), (x.float() * factors[:, None]).to(torch.bfloat16)):
                raise AssertionError(f"rank {world.rank}, call {call}: other sums than expected")
    world.barrier()
    return str(world.topology.peers[1 - world.rank].how)


def exchange_and_add_up(world: Any, device: str) -> str:
    """Returns how the other rank is reached, after calls and a megakernel that were right."""
    how = exchange(world, device)
    of_ranks = world.size * (world.size + 1) / 2
    if (seen := add_up(world)) != [step * of_ranks for step in range(1, 6)]:
        raise AssertionError(f"rank {world.rank}: a megakernel added up {seen}")
    return how


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("host", "cuda"), default="cuda")
    device = parser.parse_args().device
    import torch

    import tokenyard

    kinds = [False, True] if device == "host" or torch.cuda.device_count() >= RANKS else [False]
    for processes in kinds:
        told = tokenyard.launch(
            exchange_and_add_up,
            ranks=RANKS,
            processes=processes,
            hosts=RANKS,
            device=device,
            timeout=60,
            arena_bytes=256 << 20,
            args=(device,),
        )
        print(f"{'processes' if processes else 'threads'}: {told[0]}", flush=True)
        if device == "cuda" and "pinned rings" not in told[0]:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
