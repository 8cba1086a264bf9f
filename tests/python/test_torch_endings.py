"""Programs over backend tokenyard that end, or whose peers do, leave stderr alone."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from torch_ranks import needs_torch

from tokenyard.world.rendezvous import HeldPort

pytestmark = needs_torch

UNDESTROYED = """
import sys, torch, torch.distributed as dist, tokenyard.torch
rank, store = int(sys.argv[1]), dist.FileStore(sys.argv[2], -1)
dist.init_process_group("tokenyard", store=store, rank=rank, world_size=2)
pair = dist.new_group([0, 1])
total = torch.ones(3, 2)
dist.all_reduce(total.t(), group=pair)
work = dist.all_reduce(total, async_op=True)
work.wait()
future = work.get_future()
job = tokenyard.torch.collectives()
dist.barrier()
print(total.sum().item())
"""


def ended(ranks: list[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    """Returns stdout and stderr of each."""
    try:
        return [rank.communicate(timeout=100) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_program_that_destroys_no_group_ends_in_silence(tmp_path: Path) -> None:
    ranks = [start(UNDESTROYED, str(rank), str(tmp_path / "store")) for rank in range(2)]
    assert ended(ranks) == [("24.0\n", "")] * 2


STORE_DIES = """
import sys, torch, torch.distributed as dist, tokenyard, tokenyard.torch
rank, port = int(sys.argv[1]), sys.argv[2]
dist.init_process_group(
    "tokenyard", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=3
)
dist.barrier()
print("operating", flush=True)
while True:
    try:
        dist.all_reduce(torch.ones(1000))
    except tokenyard.OperationAborted as error:
        assert error.lost == [0]
        break
tokenyard.torch.collectives().shrink()
total = torch.ones(1)
dist.all_reduce(total)
print(total.item())
dist.destroy_process_group()
"""


def test_survivors_of_the_stores_rank_print_no_stack_trace() -> None:
    port = HeldPort()
    try:
        ranks = [start(STORE_DIES, str(rank), str(port.number)) for rank in range(3)]
        try:
            for rank in ranks:
                assert rank.stdout is not None
                assert rank.stdout.readline() == "operating\n"
        except BaseException:
            ended(ranks)
            raise
        ranks[0].send_signal(signal.SIGKILL)
        said = ended(ranks)
    finally:
        port.release()
    assert [out for out, _ in said[1:]] == ["2.0\n"] * 2, said
    for _, error in said[1:]:
        assert "frame #" not in error, error
        assert "recvValue failed" not in error, error
    assert said[0][1] == ""
