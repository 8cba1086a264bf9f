"""Trains twice, on one rank and on all, and compares both runs."""

from __future__ import annotations

import argparse
import json
import secrets
import tempfile
import time
from typing import Any

import torch
from program import Refused

import tokenyard

from .loss_plot import plot_losses
from .model import Shape
from .rank import train
from .text import Text, read_text

TOLERANCE = 1e-5
"""Largest relative difference of losses due to rounding: sums are taken in another order."""


def losses_of(
    ranks: int, hosts: int, steps: int, device: str, text: Text, shape: Shape
) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        job: dict[str, Any] = dict(store=f"file:{folder}/store", secret=secrets.token_hex(16))
        every = tokenyard.launch(
            train,
            ranks,
            processes=True,
            device=device,
            hosts=hosts,
            args=(job, text, shape, steps),
        )
    return every[0]


def run(chosen: argparse.Namespace) -> int:
    """Trains as the arguments say; returns the exit status."""
    if chosen.device == "cuda" and torch.cuda.device_count() < chosen.ranks:
        gpus = torch.cuda.device_count()
        raise Refused(f"--ranks: each process needs a GPU of its own, and this machine has {gpus}")
    shape = Shape()
    try:
        text = read_text(chosen.text, shape.window)
    except (OSError, ValueError) as error:
        raise Refused(f"--text: {error}") from None
    alone: list[float] = []
    if chosen.compared:
        print(f"{chosen.compared} steps on one rank ...", flush=True)
        alone = losses_of(1, 1, chosen.compared, chosen.device, text, shape)
    where = f" of {chosen.hosts} hosts" if chosen.hosts > 1 else ""
    print(f"{chosen.steps} steps on {chosen.ranks} ranks{where} ...", flush=True)
    begin = time.monotonic()
    losses = losses_of(chosen.ranks, chosen.hosts, chosen.steps, chosen.device, text, shape)
    seconds = time.monotonic() - begin
    apart = max((abs(a - b) / b for a, b in zip(losses, alone, strict=False)), default=0.0)
    ok = apart <= TOLERANCE
    print(f"  {seconds:.1f} s, loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(f"  {'the same' if ok else 'NOT the same'} as on one rank: at most {apart:.1e} apart")

    plot_losses(chosen.out / "loss.png", losses, alone, chosen.ranks)
    report = dict(
        ok=ok,
        ranks=chosen.ranks,
        hosts=chosen.hosts,
        losses=losses,
        losses_alone=alone,
        largest_difference=apart,
        tolerance=TOLERANCE,
        seconds=seconds,
    )
    (chosen.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"See {chosen.out}/loss.png and report.json.")
    return 0 if ok else 1
