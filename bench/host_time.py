"""Measures the host time of Python calls of an exchange, which enqueue and do not wait.

python bench/host_time.py                 # two GPUs, one process each
python bench/host_time.py --device host   # a smoke test
python bench/host_time.py --torch         # calls of torch.distributed instead, backend tokenyard
python bench/host_time.py --output bench/results/host_time_2_gpus.json
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peers.environment import environment  # In this folder.
from peers.results_file import write_results

import tokenyard

TOKENS, HIDDEN, TOPK, EXPERTS = 128, 7168, 8, 256
CALLS, WARM_UP = 200, 20


def host_us(world: tokenyard.World, call: Callable[[], object], calls: int) -> list[float]:
    """Returns the host time of each call. The device must keep up, so that the host never waits."""
    times = []
    for number in range(WARM_UP + calls):
        if number % 20 == 0:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            world.barrier()
        begun = time.perf_counter()
        kept = call()
        times.append((time.perf_counter() - begun) * 1e6)
        del kept
    return times[WARM_UP:]


def rank(world: tokenyard.World, tokens: int, hidden: int, calls: int) -> dict[str, list[float]]:
    device = "cpu" if world.device_index is None else f"cuda:{world.device_index}"
    exchange = tokenyard.ExpertParallel(
        world, experts=EXPERTS, hidden=hidden, topk=TOPK, tokens_max=tokens
    )
    x = torch.randn(tokens, hidden, device=device).to(torch.bfloat16)
    ids = torch.stack([torch.randperm(EXPERTS, device=device)[:TOPK] for _ in range(tokens)])
    weights = torch.rand(tokens, TOPK, device=device)
    places = world.size * tokens
    received = exchange.dispatch(x, ids, weights, received_tokens_max=places)
    y, out = exchange.combine_buffer(received), torch.empty_like(x)
    y.zero_()
    times = {
        "dispatch": lambda: exchange.dispatch(x, ids, weights, received_tokens_max=places),
        "dispatch, route kept": lambda: exchange.dispatch(x, route=received.route),
        "combine": lambda: exchange.combine(y, received, out=out),
    }
    results = {name: host_us(world, call, calls) for name, call in times.items()}
    exchange.wait()
    return results


def torch_rank(world: tokenyard.World, folder: str, calls: int) -> dict[str, list[float]]:
    """The same of torch.distributed on 4 KB in the current stream, and beside it."""
    import torch.distributed as dist

    import tokenyard.torch

    on_host = world.device_index is None
    device = torch.device("cpu") if on_host else torch.device("cuda", world.device_index)
    if not on_host:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "tokenyard",
        store=dist.FileStore(f"{folder}/store", -1),
        rank=world.rank,
        world_size=world.size,
        pg_options=tokenyard.torch.Options(_host_device=on_host),
    )
    x = torch.zeros(1024, device=device)
    gathered = torch.zeros(1024 * world.size, device=device)
    times = {
        "torch all_reduce": lambda: dist.all_reduce(x),
        "torch all_reduce, async": lambda: dist.all_reduce(x, async_op=True).wait(),
        "torch all_gather": lambda: dist.all_gather_into_tensor(gathered, x),
    }
    results = {name: host_us(world, call, calls) for name, call in times.items()}
    tokenyard.torch.check_device()
    dist.destroy_process_group()
    return results


def row(
    name: str, times: list[float], shape: tuple[int, int, int], ranks: int, gpus: int
) -> dict[str, Any]:
    """Returns a result in the format of bench/harness, with the ninth decile for host jitter."""
    tokens, hidden, _ = shape
    return dict(
        case=name,
        gpus=gpus,
        ranks=ranks,
        tokens=tokens,
        hidden=hidden,
        unit="us",
        ours=dict(
            median=statistics.median(times),
            min=times[0],
            max=times[-1],
            ninth_decile=times[len(times) * 9 // 10],
        ),
        peer=None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "host"), default="cuda")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--output", help="JSON file to write, such as bench/results/host_time.json")
    parser.add_argument("--torch", action="store_true", help="calls of torch.distributed")
    arguments = parser.parse_args()
    small = arguments.device == "host"
    shape = (4, 64, 5) if small else (TOKENS, HIDDEN, CALLS)
    where = dict(ranks=arguments.ranks, processes=True, device=arguments.device)
    if arguments.torch:
        with tempfile.TemporaryDirectory() as folder:
            ranks = tokenyard.launch(torch_rank, args=(folder, shape[2]), **where)
    else:
        ranks = tokenyard.launch(rank, args=shape, **where)
    gpus = 0 if small else arguments.ranks
    rows = [
        row(
            name,
            sorted(us for of_rank in ranks for us in of_rank[name]),
            shape,
            arguments.ranks,
            gpus,
        )
        for name in ranks[0]
    ]
    print(f"host time of a call in us, {arguments.ranks} ranks: median, ninth decile")
    for of_call in rows:
        ours = of_call["ours"]
        print(f"{of_call['case']:24} {ours['median']:7.1f} {ours['ninth_decile']:7.1f}")
    if arguments.output:
        write_results(Path(arguments.output), environment(gpus), rows)
        print(f"written: {arguments.output}")


if __name__ == "__main__":
    main()
