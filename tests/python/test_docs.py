"""Every Python block of the documentation runs, read from its page.

A block that launches is a program. The others are fragments: those of a page run in order, with
names that the page presupposes. Blocks that mention CUDA need a GPU.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from pages import PAGES, Block, blocks_of, fragments, text_of
from programs import EXAMPLES, run_python, torchrun
from ranks import Rank, file_store, ranks_of, results_of
from torch_ranks import needs_torch

import tokenyard
from tokenyard.megakernel import Graph, Megakernel, TensorMemory

Names = dict[str, Any]
MOONCAKE = "compat/mooncake/README.md"


def gpus() -> int:
    return pytest.importorskip("torch").cuda.device_count() or pytest.skip("needs a GPU")


def test_no_block_is_of_a_page_or_a_language_without_a_test() -> None:
    languages = {
        language for page in PAGES for language in re.findall(r"^```(.+)$", text_of(page), re.M)
    }
    # sh: test_docs_commands.py; cmake: the lines of examples/cpp, by tests/packages/cpp_package.py.
    assert languages == {"cmake", "cpp", "python", "sh"}
    cpp = [block.page for page in PAGES for block in blocks_of(page, "cpp")]
    # The last one's test: tests/megakernel/first_task_test.cpp.
    assert cpp == [*EXCERPTS, "megakernel.md"]
    exchanges = {"choosing_sms.md", "cuda_graphs.md", "expert_parallel.md", "reading_the_trace.md"}
    others = {"jobs.md", "low_latency.md", "megakernel.md", "torch.md", MOONCAKE}
    assert {page for page in PAGES if fragments(page)} == exchanges | others


EXCERPTS = {"expert_parallel.md": "exchange.cpp", "jobs.md": "all_reduce.cpp"}


@pytest.mark.parametrize("page", EXCERPTS)
def test_lines_of_cpp_are_those_of_an_example(page: str) -> None:
    """tests/packages/cpp_package.py compiles and runs the examples."""
    (block,) = blocks_of(page, "cpp")
    example = (EXAMPLES / "cpp" / EXCERPTS[page]).read_text(encoding="utf-8")
    lines = [line.strip() for line in example.splitlines()]
    for line in block.code.splitlines():
        assert line.startswith("//") or line.strip() in lines, line


PROGRAMS = [block for page in PAGES for block in blocks_of(page, "python") if block.is_program]


def largest_errors(output: str) -> list[float]:
    """Returns the numbers that a program prints, one per rank."""
    return [float(error) for error in re.findall(r"\d+\.\d+", output)]


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: f"{block.page}:{block.line}")
def test_a_program_prints_what_its_page_says(
    block: Block, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if block.needs_gpu:
        gpus()
    if "import torch" in block.code:
        pytest.importorskip("torch")
    if "import tokenyard.torch" in block.code:
        request.getfixturevalue("torch_backend")
    if block.torchrun_ranks is not None:
        if pytest.importorskip("torch").cuda.device_count() < block.torchrun_ranks:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # Processes do not share a GPU.
        done = torchrun(block.in_place, block.torchrun_ranks, tmp_path)
        assert done.returncode == 0, done.stderr
        assert len(largest_errors(done.stdout)) == block.torchrun_ranks
        assert max(largest_errors(done.stdout)) < 0.05
        return
    program = tmp_path / "program.py"
    program.write_text(block.in_place, encoding="utf-8")
    done = run_python(program)
    assert done.returncode == 0, done.stderr
    told = re.findall(r"^ *print\(.*\)  # (.+)$", block.code, re.MULTILINE)
    if told:
        assert done.stdout.splitlines() == [str(eval(value)) for value in told]
    else:
        # The README's, with four ranks. Twice half of x is x, up to rounding.
        assert block.page == "README.md"
        assert len(largest_errors(done.stdout)) == 4
        assert max(largest_errors(done.stdout)) < 0.05


def exchange_and_tokens(world: tokenyard.World, tokens: int = 6) -> Names:
    """Returns the names that pages on exchanges presuppose, with identity experts."""
    rng = np.random.default_rng(world.rank)
    sizes = dict(experts=256, hidden=7168, topk=8, tokens_max=4096)
    return dict(
        tokenyard=tokenyard,
        world=world,
        exchange=tokenyard.ExpertParallel(world, **sizes),
        x=rng.standard_normal((tokens, 7168)).astype(ml_dtypes.bfloat16),
        topk_idx=rng.random((tokens, 256)).argsort(axis=1)[:, :8].copy(),
        topk_weights=np.full((tokens, 8), 1 / 8, np.float32),
        experts=lambda rows, *where: rows,
        grouped_gemm=lambda rows, *where: rows,
    )


def on_gpu(names: Names) -> Names:
    """Returns the same as tensors, and names that only pages on GPUs presuppose."""
    import torch

    torch.cuda.set_device(names["world"].device_index)
    x = torch.from_numpy(names["x"].view(np.int16)).view(torch.bfloat16).cuda()
    ids, weights = (torch.from_numpy(names[key]).cuda() for key in ("topk_idx", "topk_weights"))
    compute = torch.cuda.Stream()
    more = dict(
        torch=torch,
        communication=torch.cuda.Stream(),
        compute=compute,
        inputs_ready=torch.cuda.current_stream().record_event(),
        attention=lambda *given: None,
        batches=[(x.clone(), ids.clone(), weights.clone()), (x + 1, ids.flip(0), weights.clone())],
        places=256 * 128,
        out=torch.empty_like(x),
    )
    return names | dict(x=x, topk_idx=ids, topk_weights=weights) | more


def on_ranks(page: str, device: str, check: Callable[[Names], None]) -> None:
    """Runs a page's fragments, on the host without those that mention CUDA, then `check`."""
    ranks = gpus() if device == "cuda" else 2

    def rank(world: tokenyard.World) -> None:
        names = exchange_and_tokens(world)
        if device == "cuda":
            names = on_gpu(names)
            names["exchange"].dispatch(*(names[key] for key in ("x", "topk_idx", "topk_weights")))
        for block in fragments(page):
            if device == "cuda" or not block.needs_gpu:
                block.run(names)
        check(names)
        names["exchange"].wait()

    tokenyard.launch(rank, ranks=ranks, device=device, arena_bytes=4 << 30)


def assert_home(home: Any, x: Any) -> None:
    """Weights of eight experts sum to one; sums of each rank and of all are rounded."""
    differences = [float(abs(one - other).max()) for one, other in zip(home, x, strict=True)]
    assert max(differences) < 0.05


@pytest.mark.parametrize("device", ["host", "cuda"])
def test_rows_go_to_experts_and_come_home(device: str) -> None:
    def check(names: Names) -> None:
        assert_home(names["home"], names["x"])
        assert names["rows"].x.shape[0] % 128 == 0
        assert (names["received"].experts_ready is not None) == (device == "cuda")

    on_ranks("expert_parallel.md", device, check)


@pytest.mark.parametrize("device", ["host", "cuda"])
def test_a_call_may_take_fewer_multiprocessors(device: str) -> None:
    def check(names: Names) -> None:
        assert names["exchange"].sms == 16

    on_ranks("choosing_sms.md", device, check)


@pytest.mark.parametrize("device", ["host", "cuda"])
def test_a_trace_is_written(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def check(names: Names) -> None:
        trace = json.loads(Path(f"dispatch_{names['world'].rank}.json").read_text())
        told = {event["name"].removeprefix("until ") for event in trace["traceEvents"]}
        moments = re.findall(r"^\| (\w+) \|", text_of("reading_the_trace.md"), re.MULTILINE)
        assert {"counted", "moved", "ended"} <= told <= {*moments}

    on_ranks("reading_the_trace.md", device, check)


def test_a_graph_is_replayed_over_other_tokens() -> None:
    def check(names: Names) -> None:
        assert_home(names["out"], names["batches"][-1][0])

    on_ranks("cuda_graphs.md", "cuda", check)


def test_traces_of_all_ranks_are_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = fragments("megakernel.md")

    def rank(world: tokenyard.World) -> None:
        graph, memory = Graph(world), TensorMemory(world)
        place = memory.local(4)
        written = graph.tensor("sum", place, 4)
        graph.task(
            "reduce", name=f"sum of {world.rank}", writes=[written.all()], parts=place,
            residual=None, y=place, part_count=0, stride=0, count=1,
        )  # fmt: skip
        graph.once()
        kernel = Megakernel(world, graph, trace_records=8)
        kernel.run(1)
        block.run(dict(world=world, kernel=kernel))

    tokenyard.launch(rank, ranks=2)
    names = {event["name"] for event in json.loads(Path("ranks.json").read_text())["traceEvents"]}
    assert {"sum of 0", "sum of 1"} <= names


@pytest.mark.parametrize("rows", ["fp8", "fp8_rounded", "fp8_ue8m0"])
def test_scales_have_the_shape_and_strides_of_their_table(rows: str) -> None:
    (block,) = fragments("low_latency.md")
    channels, dtype = (512, "int32") if rows == "fp8_ue8m0" else (128, "float32")

    def rank(world: tokenyard.World) -> None:
        sizes = dict(experts=8, hidden=640, topk=2, tokens_max=16)
        exchange = tokenyard.LowLatency(world, **sizes)
        x = np.ones((4, 640), ml_dtypes.bfloat16)
        received = exchange.dispatch(x, np.tile(np.array([[0, 5]]), (4, 1)), rows=rows)
        groups, rows_max = -(-640 // channels), 2 * 16
        scales = received.scales
        assert scales is not None
        assert scales.dtype == dtype
        assert scales.shape == (4, rows_max, groups)
        strides = [stride // scales.itemsize for stride in scales.strides]
        assert strides == [rows_max * groups, 1, rows_max]

        names = dict(rows=received)
        block.run(names)
        by_columns: Any = names["by_columns"]
        of_first: Any = names["of_first_expert"]
        assert by_columns.shape == (4, groups, rows_max)
        assert by_columns.flags.c_contiguous
        assert np.shares_memory(by_columns, scales)
        # Expert 0 gets four tokens of each rank, and expert 4, the first of rank 1, none.
        assert of_first.shape == (8 if world.rank == 0 else 0, groups)
        weights = np.full((4, 2), 0.5, np.float32)
        exchange.combine(np.zeros(received.x.shape, ml_dtypes.bfloat16), received, weights)
        exchange.wait()

    tokenyard.launch(rank, ranks=2)


def connect(say: Any, rank: int, size: int, folder: Path) -> tuple[float, bool]:
    names: Names = dict(rank=rank)
    fragments("jobs.md")[0].run(names, ("/shared/folder", str(folder)))
    return float(names["gradient"].mean()), "pair" in names


def test_ranks_meet_in_a_folder(tmp_path: Path) -> None:
    wanted = [(1.0, rank in (0, 3)) for rank in range(4)]
    assert results_of(connect, 4, tmp_path) == wanted


STEPS, SIZE, LOST = 6, 3, 2


def go_on(say: Any, rank: int, store: str, meet: str) -> list[float]:
    """Returns the averaged gradients; the victim dies at its fourth, unless it has just joined."""
    gradients: dict[int, np.ndarray] = {}
    steps = np.zeros((SIZE, 1), np.int64)
    options = dict(secret="of the tests", rank=rank, size=SIZE, timeout=60)
    with getattr(tokenyard.Collectives, meet)(store, **options) as job:

        def gradient_of(step: int) -> np.ndarray:
            if (rank, step, meet) == (LOST, 3, "connect"):
                os.kill(os.getpid(), signal.SIGKILL)
            return gradients.setdefault(step, np.full(10, step + rank, np.float32))

        def share_state() -> None:
            names["world"].all_gather(np.array([names["step"]]), steps).wait()
            names["step"] = int(steps.max())

        names: Names = dict(tokenyard=tokenyard, job=job, world=job.world(), step=0, steps=STEPS)
        names |= dict(gradient_of=gradient_of, share_state=share_state)
        if meet == "join":
            share_state()
        fragments("jobs.md")[1].run(names)
    return [float(gradients[step].mean()) for step in sorted(gradients)]


def survive(say: Any, rank: int, size: int, store: str) -> list[float]:
    return go_on(say, rank, store, "connect")


def test_training_goes_on_with_a_new_process_in_a_lost_ones_place(tmp_path: Path) -> None:
    store = file_store(tmp_path)
    with ranks_of(survive, SIZE, store) as ranks:
        ranks[LOST].process.join(60)
        newcomer = Rank(go_on, LOST, store, "join")
        try:
            averages = [float(step + 1) for step in range(STEPS)]
            assert [rank.result() for rank in ranks[:LOST]] == [averages] * LOST
            assert newcomer.result() == averages[3:]
        finally:
            newcomer.end()


@needs_torch[0]
@needs_torch[1]
def test_process_groups_of_mooncake(tmp_path: Path) -> None:
    (block,) = fragments(MOONCAKE)
    before = f"import sys\n\nsys.path.insert(0, {str(PAGES[MOONCAKE].parent)!r})\n"
    after = (
        "import torch\n\nranks = torch.ones(1)\ndist.all_reduce(ranks)\n"
        # One write: two processes share the output.
        "active = pg.get_active_ranks(dist.group.WORLD).tolist()\n"
        "dist.barrier()\n"  # A rank that leaves is active no more.
        "sys.stdout.write(f'{ranks.item()} {active}\\n')\n"
        "dist.destroy_process_group()\n"
    )
    done = torchrun(before + block.code + after, 2, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2.0 [1, 1, 0, 0]"] * 2


def test_dispatch_and_combine_of_torch() -> None:
    torch = pytest.importorskip("torch")
    block, _ = fragments("torch.md")

    def rank(world: tokenyard.World) -> bool:
        x = torch.ones(5, 64, requires_grad=True)
        names = dict(tokenyard=tokenyard, world=world, x=x, my_experts=lambda there: 3 * there.x)
        names["topk_idx"] = torch.tensor([[0, 1]] * 5)  # Both are on rank 0, so one row arrives.
        names["topk_weights"] = torch.full((5, 2), 0.5)
        block.run(names)
        names["home"].sum().backward()
        return bool((names["home"] == 3).all() and (x.grad == 3).all())

    assert tokenyard.launch(rank, ranks=2) == [True, True]


def test_fp8_rows_of_torch() -> None:
    torch = pytest.importorskip("torch")
    from tokenyard.moe import Exchange

    _, block = fragments("torch.md")

    def rank(world: tokenyard.World) -> bool:
        sizes = dict(experts=8, hidden=128, topk=2, tokens_max=8)
        x = torch.ones(5, 128, dtype=torch.bfloat16, requires_grad=True)
        names = dict(exchange=Exchange(tokenyard.ExpertParallel(world, **sizes)), x=x)
        names["my_experts"] = lambda there: 3 * there.dequantized()
        names["topk_idx"] = torch.tensor([[0, 1]] * 5)  # Both are on rank 0, so one row arrives.
        names["topk_weights"] = torch.full((5, 2), 0.5)
        block.run(names)
        names["home"].sum().backward()
        return bool((names["home"] == 3).all() and (x.grad == 3).all())

    assert tokenyard.launch(rank, ranks=2) == [True, True]


@needs_torch[0]
@needs_torch[1]
def test_a_process_group_of_torch(tmp_path: Path) -> None:
    _, _, plain, with_options = fragments("jobs.md")
    between = "\ndist.destroy_process_group()\n"
    check = "assert job.active_ranks() == [0, 1]\ndist.barrier()" + between
    done = torchrun(plain.code + between + with_options.code + check, 2, tmp_path)
    assert done.returncode == 0, done.stderr
