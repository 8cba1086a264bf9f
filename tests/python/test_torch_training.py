"""DistributedDataParallel continues when a rank is killed during a backward pass."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from ranks import Rank, ranks_of, results_of
from torch_ranks import dist, in_job, needs_torch, torch

import tokenyard

pytestmark = needs_torch

RANKS, STEPS, FATAL_STEP = 3, 24, 10


class Training:
    """A small model; its data depend only on the step and the rank's number."""

    def __init__(self, rank: int) -> None:
        torch.manual_seed(rank)
        self.rank = rank
        self.plain = torch.nn.Sequential(
            torch.nn.Linear(9, 300), torch.nn.Tanh(), torch.nn.Linear(300, 4)
        )
        self.step = 0

    def wrap(self) -> None:
        """Collective: DDP compares the ranks' shapes, and takes the first rank's values."""
        # Several buckets, of which some may be reduced when a rank dies.
        self.model = torch.nn.parallel.DistributedDataParallel(self.plain, bucket_cap_mb=0.001)
        self.optimizer = torch.optim.SGD(self.plain.parameters(), lr=0.05)

    def loss(self, model: Any) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * self.step + self.rank)
        inputs = torch.randn(8, 9, generator=generator)
        return (model(inputs) - inputs[:, :4]).square().mean()

    def one_step(self, fatal: bool) -> None:
        self.optimizer.zero_grad()
        loss = self.loss(self.model)
        if fatal:
            self.plain[0].weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        loss.backward()
        self.optimizer.step()
        self.step += 1

    def parameters(self) -> list[float]:
        return torch.cat([p.detach().flatten() for p in self.plain.parameters()]).tolist()

    def take_over(self, newcomer: bool) -> None:
        """Copies the state of a survivor to all ranks; all survivors are at one step."""
        steps = [torch.empty(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(steps, torch.tensor([-1 if newcomer else self.step]))
        self.step, source = max((int(step), rank) for rank, step in enumerate(steps))
        for parameter in self.plain.parameters():
            dist.broadcast(parameter.data, source)
        self.wrap()


def train_without(say: Any, rank: int, size: int, folder: Path, lost: int) -> list[float]:
    with in_job(rank, size, folder, on_failure="exclude"):
        training = Training(rank)
        training.wrap()
        training.model.register_comm_hook(None, tokenyard.torch.average_hook)
        while training.step < STEPS:
            training.one_step(fatal=rank == lost and training.step == FATAL_STEP)
        assert tokenyard.torch.collectives().active_ranks() == [r for r in range(size) if r != lost]
        check_average(training, size - 1)
        return training.parameters()


def check_average(training: Training, ranks: int) -> None:
    """Gradients are the mean over the remaining ranks."""
    training.optimizer.zero_grad()
    training.loss(training.model).backward()
    averaged = [parameter.grad.clone() for parameter in training.plain.parameters()]
    training.optimizer.zero_grad()
    training.loss(training.plain).backward()
    for parameter, average in zip(training.plain.parameters(), averaged, strict=True):
        dist.all_reduce(parameter.grad)
        torch.testing.assert_close(average, parameter.grad / ranks)


def test_survivors_train_on(tmp_path: Path) -> None:
    with ranks_of(train_without, RANKS, tmp_path, 1) as ranks:
        first, last = ranks[0].result(), ranks[2].result()
        assert ranks[1].outcome() == (False, f"died: {-signal.SIGKILL}")
    assert first == last


def train(
    say: Any, rank: int, size: int, folder: Path, kill: bool, newcomer: bool = False
) -> list[float]:
    with in_job(rank, size, folder, join=newcomer):
        training = Training(rank)
        if newcomer:
            training.take_over(newcomer)
        else:
            training.wrap()
        while training.step < STEPS:
            if training.step == FATAL_STEP and not kill and not newcomer:
                # Like survivors of a loss: a new wrapper cuts its first buckets differently from
                # one that has seen gradients, and rounding depends on positions in buckets.
                training.wrap()
            try:
                training.one_step(fatal=kill and rank == 0 and training.step == FATAL_STEP)
            except tokenyard.OperationAborted as error:
                for lost in error.lost:
                    tokenyard.torch.collectives().replace(lost)
                training.take_over(newcomer=False)
        dist.barrier()
        return training.parameters()


def test_a_replacement_trains_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """To the last bit, though rank 0 was killed."""
    calm, struck = tmp_path / "calm", tmp_path / "struck"
    calm.mkdir()
    struck.mkdir()
    undisturbed = results_of(train, RANKS, calm, False)
    with ranks_of(train, RANKS, struck, True) as ranks:
        assert ranks[0].outcome() == (False, f"died: {-signal.SIGKILL}")
        newcomer = Rank(train, 0, RANKS, struck, False, True)
        try:
            trained = [newcomer.result(), ranks[1].result(), ranks[2].result()]
        finally:
            newcomer.end()
    assert trained == undisturbed
