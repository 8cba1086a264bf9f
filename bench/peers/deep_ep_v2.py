"""DeepEP's second version (its main branch), as a contender."""

from __future__ import annotations

from typing import Any

import deep_ep
import torch
import torch.distributed as dist
from batches import Batch, Shape
from contender import Between, Rows, nothing

ALIGNMENT = 128
LOW_LATENCY_SMS = 64


class Throughput:
    name = f"deep_ep {deep_ep.__version__}"
    lacks: frozenset[str] = frozenset()

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._sms = 0
        self._buffer = deep_ep.ElasticBuffer(
            dist.group.WORLD,
            num_max_tokens_per_rank=shape.tokens,
            hidden=shape.hidden,
            sl_idx=0,
            explicitly_destroy=True,
        )

    def use(self, sms: int, batch: Batch) -> None:
        self._sms = sms

    def _call(self, batch: Batch, fp8: bool, grouped: bool) -> Rows:
        x, _, _, handle, _ = self._buffer.dispatch(
            (batch.x_fp8, batch.scales) if fp8 else batch.x,
            topk_idx=batch.topk_idx,
            topk_weights=batch.topk_weights,
            num_experts=self._shape.experts,
            num_max_tokens_per_rank=self._shape.tokens,
            expert_alignment=ALIGNMENT if grouped else 1,
            num_sms=self._sms,
            do_cpu_sync=True,
            do_expand=grouped,
        )
        return Rows(x[0], handle, x[1]) if fp8 else Rows(x, handle)

    def dispatch(self, batch: Batch, fp8: bool = False) -> Rows:
        return self._call(batch, fp8, grouped=False)

    def dispatch_again(self, batch: Batch, rows: Rows) -> torch.Tensor:
        return self._buffer.dispatch(batch.x, num_sms=self._sms, handle=rows.handle)[0]

    def dispatch_by_expert(self, batch: Batch, at_once: bool = False) -> Rows:
        return self._call(batch, fp8=False, grouped=True)

    def experts_of(self, rows: Rows) -> list[tuple[int, int]]:
        ends = rows.handle.psum_num_recv_tokens_per_expert.tolist()
        firsts = [0] + [-(-end // ALIGNMENT) * ALIGNMENT for end in ends[:-1]]
        return list(zip(firsts, ends, strict=True))

    def output(self, rows: Rows) -> torch.Tensor:
        return torch.empty_like(rows.x, dtype=torch.bfloat16)

    def combine(self, y: torch.Tensor, rows: Rows) -> torch.Tensor:
        return self._buffer.combine(y, rows.handle, num_sms=self._sms)[0]

    def combine_by_expert(self, y: torch.Tensor, rows: Rows) -> torch.Tensor:
        return self._buffer.combine(y, rows.handle, num_sms=self._sms)[0]

    def wait(self) -> None:
        torch.cuda.synchronize()

    def close(self) -> None:
        self._buffer.destroy()


class LowLatency:
    """The same calls without a host wait; they take rows already in FP8 and apply no weights."""

    name = f"deep_ep {deep_ep.__version__}, {LOW_LATENCY_SMS} SMs"
    hooks = weighted = False

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._buffer = deep_ep.ElasticBuffer(
            dist.group.WORLD,
            num_max_tokens_per_rank=shape.tokens,
            hidden=shape.hidden,
            sl_idx=0,
            explicitly_destroy=True,
        )

    def dispatch(
        self, batch: Batch, hooks: bool, between: Between = nothing
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:
        (x, scales), _, _, handle, _ = self._buffer.dispatch(
            (batch.x_fp8, batch.scales),
            topk_idx=batch.topk_idx,
            topk_weights=batch.topk_weights,
            num_experts=self._shape.experts,
            num_max_tokens_per_rank=self._shape.tokens,
            num_sms=LOW_LATENCY_SMS,
            do_handle_copy=False,
            do_cpu_sync=False,
            do_expand=True,
        )
        return x, scales, handle

    def combine(
        self, y: torch.Tensor, batch: Batch, handle: Any, hooks: bool, between: Between = nothing
    ) -> torch.Tensor:
        return self._buffer.combine(y, handle, num_sms=LOW_LATENCY_SMS)[0]

    def wait(self) -> None:
        torch.cuda.synchronize()

    def close(self) -> None:
        self._buffer.destroy()
