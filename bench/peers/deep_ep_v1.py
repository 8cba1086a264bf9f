"""DeepEP's first version (tag v1.2.1), as a contender.

Its chunk sizes are the best of those tried for each number of multiprocessors, as its own tests
choose them.
"""

from __future__ import annotations

from typing import Any

import deep_ep
import torch
import torch.distributed as dist
from batches import Batch, Shape
from contender import Between, Rows, nothing
from timing import Call, Meeting, event_times, slowest

NVLINK_BYTES = int(2e9)
BUFFER_ROWS = 256
DISPATCH_CHUNKS = (6, 8, 12, 16, 20, 24, 28, 32)
COMBINE_CHUNKS = (4, 6, 8, 9, 10, 12, 14, 16)


class Throughput:
    name = "deep_ep 1.2.1"
    lacks = frozenset({"dispatch bf16 by expert", "combine bf16 by expert"})

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._buffer = deep_ep.Buffer(dist.group.WORLD, NVLINK_BYTES, explicitly_destroy=True)
        self._dispatch = self._combine = None
        self.chunks: dict[int, tuple[int, int]] = {}

    def use(self, sms: int, batch: Batch) -> None:
        deep_ep.Buffer.set_num_sms(sms)
        self._dispatch = deep_ep.Buffer.get_dispatch_config(self._shape.ranks)
        self._combine = deep_ep.Buffer.get_combine_config(self._shape.ranks)
        rows = self.dispatch(batch)
        dispatch = [deep_ep.Config(sms, chunk, BUFFER_ROWS) for chunk in DISPATCH_CHUNKS]
        combine = [deep_ep.Config(sms, chunk, BUFFER_ROWS) for chunk in COMBINE_CHUNKS]

        def again(config: Any) -> Call:
            return lambda _: self._buffer.dispatch(batch.x, handle=rows.handle, config=config)

        def home(config: Any) -> Call:
            return lambda _: self._buffer.combine(rows.x, rows.handle, config=config)

        best = fastest([again(config) for config in dispatch])
        best_home = fastest([home(config) for config in combine])
        self._dispatch, self._combine = dispatch[best], combine[best_home]
        self.chunks[sms] = DISPATCH_CHUNKS[best], COMBINE_CHUNKS[best_home]

    def dispatch(self, batch: Batch, fp8: bool = False) -> Rows:
        layout = self._buffer.get_dispatch_layout(batch.topk_idx, self._shape.experts)
        x, _, _, _, handle, _ = self._buffer.dispatch(
            (batch.x_fp8, batch.scales) if fp8 else batch.x,
            num_tokens_per_rank=layout[0],
            num_tokens_per_expert=layout[2],
            is_token_in_rank=layout[3],
            topk_idx=batch.topk_idx,
            topk_weights=batch.topk_weights,
            config=self._dispatch,
        )
        return Rows(x[0], handle, x[1]) if fp8 else Rows(x, handle)

    def dispatch_again(self, batch: Batch, rows: Rows) -> torch.Tensor:
        return self._buffer.dispatch(batch.x, handle=rows.handle, config=self._dispatch)[0]

    def dispatch_by_expert(self, batch: Batch, at_once: bool = False) -> Rows:
        raise NotImplementedError

    def experts_of(self, rows: Rows) -> list[tuple[int, int]]:
        raise NotImplementedError

    def output(self, rows: Rows) -> torch.Tensor:
        return torch.empty_like(rows.x, dtype=torch.bfloat16)

    def combine(self, y: torch.Tensor, rows: Rows) -> torch.Tensor:
        return self._buffer.combine(y, rows.handle, config=self._combine)[0]

    def combine_by_expert(self, y: torch.Tensor, rows: Rows) -> torch.Tensor:
        raise NotImplementedError

    def wait(self) -> None:
        torch.cuda.synchronize()

    def close(self) -> None:
        self._buffer.destroy()


def fastest(calls: list[Call]) -> int:
    """Returns the index of the call whose slowest rank is fastest. Collective."""
    times = event_times(Meeting(), calls, count=5, sets=1)
    middles = [sorted(mine)[len(mine) // 2] for mine in times]
    over_ranks = slowest(middles)
    return over_ranks.index(min(over_ranks))


class LowLatency:
    name = "deep_ep 1.2.1"
    hooks = weighted = True

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        size = deep_ep.Buffer.get_low_latency_rdma_size_hint(
            shape.tokens, shape.hidden, shape.ranks, shape.experts
        )
        self._buffer = deep_ep.Buffer(
            dist.group.WORLD,
            num_rdma_bytes=size,
            low_latency_mode=True,
            num_qps_per_rank=shape.local_experts,
            explicitly_destroy=True,
        )

    def dispatch(
        self, batch: Batch, hooks: bool, between: Between = nothing
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:
        (x, scales), _, handle, _, hook = self._buffer.low_latency_dispatch(
            batch.x,
            batch.topk_idx,
            self._shape.tokens,
            self._shape.experts,
            use_fp8=True,
            return_recv_hook=hooks,
        )
        if hooks:
            between()
            hook()
        return x, scales, handle

    def combine(
        self, y: torch.Tensor, batch: Batch, handle: Any, hooks: bool, between: Between = nothing
    ) -> torch.Tensor:
        out, _, hook = self._buffer.low_latency_combine(
            y, batch.topk_idx, batch.topk_weights, handle, return_recv_hook=hooks
        )
        if hooks:
            between()
            hook()
        return out

    def wait(self) -> None:
        torch.cuda.synchronize()

    def close(self) -> None:
        self._buffer.destroy()
