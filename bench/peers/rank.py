"""Runs one rank of a scene: measures ours beside one peer; rank 0 prints a JSON line per row.

`python bench/peers` starts it with a Place as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from scene import Place


def main() -> None:
    place = Place(**json.loads(sys.argv[1]))
    sys.path.insert(0, place.site)
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(place.rank)
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{place.ports[0]}",
        rank=place.rank,
        world_size=place.ranks,
        timeout=timedelta(seconds=60),
        device_id=torch.device("cuda", place.rank),
    )
    try:
        for row in rows_of(place):
            if place.rank == 0:
                print(json.dumps(row), flush=True)
    except BaseException:
        # Exits at once: the other ranks may wait for this one, which must not wait for them.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    dist.barrier()
    dist.destroy_process_group()


def rows_of(place: Place) -> Iterator[dict[str, Any]]:
    import low_latency
    import ours
    import throughput
    from batches import Shape

    import tokenyard

    shape = Shape(place.ranks, **place.shape)
    store = f"tcp://127.0.0.1:{place.ports[1]}"
    job = tokenyard.connect(store, rank=place.rank, size=place.ranks)
    world = job.world(device="cuda", arena_bytes=8 << 30)
    peer = importlib.import_module(place.peer)
    if place.kind == "throughput":
        sms_max = max(*place.values, ours.AT_ONCE_SMS)
        contenders = ours.Throughput(world, shape, sms_max), peer.Throughput(shape)
        yield from throughput.measure(*contenders, shape, place.rank, place.values)
    else:
        few = ours.LowLatency(world, shape), peer.LowLatency(shape)
        yield from low_latency.measure(*few, shape, place.rank, place.values)
        contenders = few
    for contender in contenders:
        contender.close()
    world.close()


if __name__ == "__main__":
    main()
