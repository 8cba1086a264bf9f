"""Buffers over process groups of torch, as the frameworks make them: real processes, gloo.

Their calls are in test_frameworks_vllm.py, test_frameworks_megatron.py and
test_frameworks_sglang.py, mostly over ranks that are threads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deep_ep_batch import PACKAGE, needs_torch, torch
from frameworks_reference import Layer
from ranks import results_of

if torch is not None:
    import deep_ep
    import megatron_calls as megatron
    import test_frameworks_vllm as vllm
    import torch.distributed as dist

pytestmark = needs_torch

RANKS = 2
MEGABYTE = 1 << 20


@contextmanager
def gloo(rank: int, folder: str) -> Iterator[Any]:
    """Joins a group of all ranks."""
    sys.path.insert(0, str(PACKAGE))
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    yield dist.group.WORLD
    dist.barrier()
    dist.destroy_process_group()


def in_group(say: Any, rank: int, size: int, folder: str, device: str) -> list[int]:
    where = "cpu"
    if device == "cuda":
        where = f"cuda:{rank}"
        torch.cuda.set_device(rank)
    with gloo(rank, folder) as group:
        # vLLM: the CPU group, a GiB, one queue pair.
        buffer = deep_ep.Buffer(
            group=group,
            num_nvl_bytes=1024 * MEGABYTE,  # VLLM_DEEPEP_BUFFER_SIZE_MB.
            num_rdma_bytes=0,
            low_latency_mode=False,
            num_qps_per_rank=1,
            explicitly_destroy=True,
            device=device,
        )
        assert (buffer.rank, buffer.group_size, buffer.group) == (rank, RANKS, group)
        layer = Layer(ranks=RANKS, experts=8, tokens=(20, 11))
        vllm.check_high_throughput(buffer, layer, rank, where, fp8=True)
        buffer.destroy()

        # Megatron: buffers are dropped without being destroyed.
        layer = Layer(ranks=RANKS, experts=8, topk=2, tokens=(20, 20))
        calls = megatron.DeepEP(group, device)
        megatron.train_with_deep_ep(calls, layer, rank, where, True)
        calls.buffer = None
        calls = megatron.HybridEP(group, device=device)
        megatron.train_with_hybrid_ep(calls, layer, rank, where, 16)
        worlds = [len(calls.buffer._worlds)]
        # More and longer tokens than the buffer was made for, and of more experts.
        wider = Layer(ranks=RANKS, experts=8, topk=7, tokens=(300, 300), hidden=512)
        megatron.train_with_hybrid_ep(calls, wider, rank, where, 16)
        megatron.train_with_hybrid_ep(calls, layer, rank, where)
        worlds.append(len(calls.buffer._worlds))
        calls.buffer = None

        # SGLang: a buffer is dropped and made again, of the same group.
        for largest in (16, 32):
            buffer = deep_ep.ElasticBuffer(
                group, num_max_tokens_per_rank=largest, hidden=256, num_topk=2, device=device
            )
            x, ids, weights = [torch.from_numpy(each).to(where) for each in layer.given(rank)]
            rows, _, _, handle, _ = buffer.dispatch(
                x[:16].bfloat16(), ids[:16], weights[:16], num_experts=layer.experts
            )
            home, _, _ = buffer.combine(rows, handle)
            ranks = (ids[:16] // layer.local).float().std(1, keepdim=True).gt(0) + 1
            assert torch.equal(home, (x[:16] * ranks).bfloat16())
            buffer = rows = handle = None
        return worlds


@pytest.mark.parametrize("device", ["host", "cuda"])
def test_buffers_of_a_gloo_group(tmp_path: Path, device: str) -> None:
    if device == "cuda" and torch.cuda.device_count() < RANKS:
        pytest.skip("needs a GPU per process")
    assert results_of(in_group, RANKS, str(tmp_path), device) == [[1, 2]] * RANKS
