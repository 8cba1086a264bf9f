"""HybridEP (DeepEP's branch hybrid-ep), as a contender."""

from __future__ import annotations

from typing import Any

import deep_ep
import torch
import torch.distributed as dist
from batches import Batch, Shape
from contender import Rows


class Throughput:
    name = "hybrid_ep 94a9f8f"
    # It can group by expert, but reports an expert's rows only with their padding.
    lacks = frozenset({"dispatch bf16 by expert", "combine bf16 by expert"})

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._buffers: list[Any] = []

    def use(self, sms: int, batch: Batch) -> None:
        self.wait()
        # A buffer has one dtype and one number of multiprocessors; its kernels are compiled at
        # their first call.
        self._buffers = [
            deep_ep.HybridEPBuffer(
                group=dist.group.WORLD,
                hidden_dim=self._shape.hidden,
                max_num_of_tokens_per_rank=self._shape.tokens,
                num_local_experts=self._shape.local_experts,
                use_fp8=fp8,
                num_sms_dispatch_api=sms,
                num_sms_combine_api=sms,
            )
            for fp8 in (False, True)
        ]

    def dispatch(self, batch: Batch, fp8: bool = False) -> Rows:
        x, _, scales, handle = self._buffers[fp8].dispatch(
            hidden=batch.x_fp8.view(torch.uint8) if fp8 else batch.x,
            scaling_factor=batch.scales if fp8 else None,
            topk_idx=batch.topk_idx,
            topk_weights=batch.topk_weights,
            num_of_experts=self._shape.experts,
        )
        return Rows(x.view(batch.x_fp8.dtype) if fp8 else x, (handle, len(x)), scales)

    def dispatch_again(self, batch: Batch, rows: Rows) -> torch.Tensor:
        handle, count = rows.handle
        return self._buffers[False].dispatch(
            hidden=batch.x,
            num_of_experts=self._shape.experts,
            num_dispatched_tokens=count,
            handle=handle,
        )[0]

    def dispatch_by_expert(self, batch: Batch, at_once: bool = False) -> Rows:
        raise NotImplementedError

    def experts_of(self, rows: Rows) -> list[tuple[int, int]]:
        raise NotImplementedError

    def output(self, rows: Rows) -> torch.Tensor:
        return torch.empty_like(rows.x, dtype=torch.bfloat16)

    def combine(self, y: torch.Tensor, rows: Rows) -> torch.Tensor:
        return self._buffers[False].combine(hidden=y, handle=rows.handle[0])[0]

    def combine_by_expert(self, y: torch.Tensor, rows: Rows) -> torch.Tensor:
        raise NotImplementedError

    def wait(self) -> None:
        torch.cuda.synchronize()

    def close(self) -> None:
        self._buffers.clear()
