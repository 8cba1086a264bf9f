"""Checks of the results that are measured."""

from __future__ import annotations

import torch
from batches import GROUP, Batch, names_of
from contender import LowLatency, Rows, Throughput


class WrongResultError(Exception):
    """A contender's result is wrong."""


def check_throughput(contender: Throughput, everybody: list[Batch], rank: int) -> None:
    """Checks that every row arrives, and returns times the number of its token's ranks."""
    mine = everybody[rank]
    for fp8 in (False, True):
        rows = contender.dispatch(mine, fp8)
        contender.wait()
        check_rows(contender.name, rows, everybody, rank, fp8)
    rows = contender.dispatch(mine)
    contender.wait()
    times = mine.ranks_of_each()
    y = contender.output(rows)
    y.copy_(rows.x)
    home = contender.combine(y, rows)
    contender.wait()
    check_sums(contender.name, home, mine, times, 2**-7)
    again = contender.dispatch_again(mine, rows)
    contender.wait()
    check_rows(contender.name, Rows(again, None), everybody, rank)
    if "dispatch bf16 by expert" not in contender.lacks:
        for at_once in (False, True):
            check_by_expert(contender, everybody, rank, at_once)


def check_rows(name: str, rows: Rows, everybody: list[Batch], rank: int, fp8: bool = False) -> None:
    sent = [(batch, batch.goes_to(rank)) for batch in everybody]
    wanted = torch.cat([(batch.x_fp8 if fp8 else batch.x)[goes] for batch, goes in sent])
    if rows.x.shape != wanted.shape:
        raise WrongResultError(f"{name}: received {tuple(rows.x.shape)}, not {tuple(wanted.shape)}")
    # A library that promises no order may deliver in any.
    order = names_of(rows.x).argsort()
    if not torch.equal(bits(rows.x)[order], bits(wanted)):
        raise WrongResultError(f"{name}: received rows differ from those sent")
    if fp8:
        scales = torch.cat([batch.scales[goes] for batch, goes in sent])
        if rows.scales is None or not torch.equal(rows.scales[order], scales):
            raise WrongResultError(f"{name}: received scales differ from those sent")


def check_by_expert(
    contender: Throughput, everybody: list[Batch], rank: int, at_once: bool
) -> None:
    mine = everybody[rank]
    rows = contender.dispatch_by_expert(mine, at_once)
    contender.wait()
    local = mine.shape.local_experts
    for expert, (first, end) in enumerate(contender.experts_of(rows)):
        chosen = [(b.topk_idx == rank * local + expert).any(dim=1) for b in everybody]
        wanted = torch.cat([b.x[goes] for b, goes in zip(everybody, chosen, strict=True)])
        got = rows.x[first:end]
        if got.shape != wanted.shape:
            raise WrongResultError(f"{contender.name}: expert {expert} has {len(got)} rows")
        if not torch.equal(bits(got)[names_of(got).argsort()], bits(wanted)):
            raise WrongResultError(f"{contender.name}: rows of expert {expert} are wrong")
    home = contender.combine_by_expert(rows.x, rows)
    contender.wait()
    check_sums(contender.name, home, mine, mine.shape.topk, 2**-6)


def check_sums(
    name: str, out: torch.Tensor, mine: Batch, times: torch.Tensor | int, tolerance: float
) -> None:
    wanted = mine.x.float() * (times if isinstance(times, int) else times[:, None])
    if not torch.allclose(out.float(), wanted, rtol=tolerance, atol=1e-6):
        worst = (out.float() - wanted).abs().max().item()
        raise WrongResultError(f"{name}: sums are off by up to {worst}")


def check_low_latency(contender: LowLatency, mine: Batch, hooks: bool) -> None:
    """Checks identity experts: every token returns within the rounding of its FP8 row."""
    x, scales, handle = contender.dispatch(mine, hooks)
    contender.wait()
    wide = scales.contiguous().float().repeat_interleave(GROUP, dim=-1)
    y = (x.float() * wide[..., : x.shape[-1]]).bfloat16()
    out = contender.combine(y, mine, handle, hooks)
    contender.wait()
    wanted = mine.x.float() * (1 if contender.weighted else mine.shape.topk)
    error = (out.float() - wanted).norm() / wanted.norm()
    if not error < 0.05:
        raise WrongResultError(f"{contender.name}: tokens return changed by {error.item():.1%}")


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8 if x.element_size() == 1 else torch.int16)
