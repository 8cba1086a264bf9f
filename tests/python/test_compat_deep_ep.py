"""The deep_ep package: the calls of vLLM, SGLang and Megatron in their order, against torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deep_ep_batch import (
    EXPERTS,
    HIDDEN,
    LARGEST,
    NVL_BYTES,
    PACKAGE,
    RANKS,
    equal,
    expected_counts,
    expected_rows,
    expected_sum,
    given,
    in_ranks,
    inputs,
    needs_torch,
    serving_buffer_of,
    torch,
)
from programs import assert_beside_the_real_one_it_stops, run_python, start_python

import tokenyard
from tokenyard.world.rendezvous import HeldPort

if torch is not None:
    import deep_ep
    import torch.distributed as dist
    from deep_ep.utils.envs import init_dist
    from deep_ep.utils.math import per_token_cast_back, per_token_cast_to_fp8

pytestmark = needs_torch


def buffer_of(world: tokenyard.World, **options: Any) -> Any:
    return deep_ep.Buffer(world, NVL_BYTES, explicitly_destroy=True, **options)


def test_a_layout_of_experts_that_do_not_exist() -> None:
    """An index out of range would fault on a GPU; the dispatch names the id."""
    from deep_ep.routing import layout_of

    layout = layout_of(torch.tensor([[0, 3], [4, 1 << 40]]), experts=4, ranks=2)
    assert layout.num_tokens_per_rank.tolist() == [1, 1]
    assert layout.num_tokens_per_expert.tolist() == [1, 0, 0, 1]
    with pytest.raises(tokenyard.InvalidArgument, match="num_experts"):
        layout_of(torch.tensor([[0, 3]]), experts=0, ranks=2)


def test_the_sequence_of_vllm(run: Callable[..., None]) -> None:
    def layer(world: tokenyard.World) -> None:
        deep_ep.Buffer.set_num_sms(4)
        buffer = buffer_of(world)
        x, topk_idx, topk_weights = given(world)
        per_rank, per_rdma_rank, per_expert, is_in_rank, event = buffer.get_dispatch_layout(
            topk_idx=topk_idx,
            num_experts=EXPERTS,
            previous_event=None,
            async_finish=False,
            allocate_on_comm_stream=False,
        )
        assert per_rdma_rank is None
        assert equal(is_in_rank, in_ranks(topk_idx))
        assert equal(per_rank, in_ranks(topk_idx).sum(0, dtype=torch.int32))
        assert per_expert.tolist() == [(topk_idx == e).sum().item() for e in range(EXPERTS)]
        rows, ids, weights, counts, handle, event = buffer.dispatch(
            x=x,
            handle=None,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_rdma_rank,
            is_token_in_rank=is_in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=topk_idx,
            topk_weights=topk_weights,
            expert_alignment=1,
            config=deep_ep.Buffer.get_dispatch_config(world.size),
            previous_event=None,
            async_finish=False,
            allocate_on_comm_stream=False,
        )
        event.current_stream_wait()
        for seen, expected in zip((rows, ids, weights), expected_rows(world.rank), strict=True):
            assert equal(seen, expected)
        assert ids.dtype == topk_idx.dtype
        assert counts == expected_counts(world.rank)
        home, none, _ = buffer.combine(
            x=rows,
            handle=handle,
            topk_weights=None,
            config=deep_ep.Buffer.get_combine_config(world.size),
            previous_event=None,
            async_finish=False,
            allocate_on_comm_stream=False,
        )
        assert none is None
        assert equal(home, expected_sum(x, topk_idx))
        buffer.destroy()

    run(layer)


def test_the_sequence_of_sglang(run: Callable[..., None]) -> None:
    def layer(world: tokenyard.World) -> None:
        buffer = buffer_of(world)
        x, topk_idx, topk_weights = given(world)
        fp8 = per_token_cast_to_fp8(x)
        before = deep_ep.Buffer.capture()
        per_rank, _, per_expert, is_in_rank, before = buffer.get_dispatch_layout(
            topk_idx,
            EXPERTS,
            previous_event=before,
            async_finish=True,
            allocate_on_comm_stream=True,
        )
        (rows, scales), _, _, counts, handle, event = buffer.dispatch(
            (fp8[0], fp8[1].T.contiguous().T),  # By columns, as its GEMM requires.
            topk_idx=topk_idx,
            topk_weights=topk_weights,
            num_tokens_per_rank=per_rank,
            is_token_in_rank=is_in_rank,
            num_tokens_per_expert=per_expert,
            previous_event=before,
            async_finish=True,
            allocate_on_comm_stream=True,
            expert_alignment=128,
            config=deep_ep.Config(num_sms=4, num_max_nvl_chunked_send_tokens=8),
        )
        event.current_stream_wait()
        expected = expected_rows(world.rank)
        codes, steps = per_token_cast_to_fp8(expected[0])
        assert equal(rows.view(torch.uint8), codes.view(torch.uint8))
        assert equal(scales, steps)
        assert counts == [-(-count // 128) * 128 for count in expected_counts(world.rank)]
        values = per_token_cast_back(rows, scales)
        with buffer.combine(
            values, handle, async_finish=True, previous_event=deep_ep.Buffer.capture()
        )[2]:
            pass
        again, *nothing, handle_again, _ = buffer.dispatch(x, handle=handle)
        assert handle_again is None
        assert nothing == [None] * 3
        assert equal(again, expected[0])
        home, *_ = buffer.combine(again, handle, bias=(x, x))
        assert equal(home, (expected_sum(x, topk_idx) + x) + x)

    run(layer)


def test_the_sequence_of_megatron(run: Callable[..., None]) -> None:
    def layer(world: tokenyard.World) -> None:
        configs = (
            deep_ep.Buffer.get_dispatch_config(RANKS),
            deep_ep.Buffer.get_combine_config(RANKS),
        )
        size = max(config.get_nvl_buffer_size_hint(HIDDEN * 2, RANKS) for config in configs)
        assert max(config.get_rdma_buffer_size_hint(HIDDEN * 2, RANKS) for config in configs) == 0
        assert size > 8192 * RANKS * HIDDEN * 2
        buffer = buffer_of(world)
        assert (buffer.group, buffer.num_nvl_bytes, buffer.num_rdma_bytes) == (world, NVL_BYTES, 0)
        x, topk_idx, probabilities = given(world)
        before = deep_ep.utils.EventOverlap(deep_ep.utils.EventHandle())
        layout = buffer.get_dispatch_layout(topk_idx, EXPERTS, previous_event=before)
        rows, _, probs, counts, handle, after = buffer.dispatch(
            x,
            topk_idx=topk_idx,
            topk_weights=probabilities,
            num_tokens_per_rank=layout[0],
            num_tokens_per_rdma_rank=layout[1],
            num_tokens_per_expert=layout[2],
            is_token_in_rank=layout[3],
            previous_event=layout[4],
            async_finish=True,
        )
        after.current_stream_wait()
        assert torch.tensor(counts).tolist() == expected_counts(world.rank)
        # Backward: gradients of rows and probabilities are combined, those of sums dispatched.
        grad_x, grad_probs, _ = buffer.combine(rows, handle, topk_weights=probs.float())
        assert equal(grad_probs, probabilities.where(topk_idx >= 0, 0))
        assert equal(grad_x, expected_sum(x, topk_idx))
        grad_rows, *_ = buffer.dispatch(grad_x.contiguous(), handle=handle, async_finish=True)
        assert grad_rows.shape == rows.shape

    run(layer)


def test_places_without_ids_and_with_padding(run: Callable[..., None]) -> None:
    """As in DeepEP's own test: tokens that encode their destinations, and fixed sizes."""

    def layer(world: tokenyard.World) -> None:
        buffer = buffer_of(world)
        x, topk_idx, topk_weights = given(world)
        _, _, per_expert, is_in_rank, _ = buffer.get_dispatch_layout(topk_idx, EXPERTS)
        meta = dict(is_token_in_rank=is_in_rank, num_tokens_per_expert=per_expert)
        expected = expected_rows(world.rank)
        rows, ids, weights, counts, handle, _ = buffer.dispatch(x, **meta)
        assert ids is None
        assert weights is None
        assert equal(rows, expected[0])
        assert counts == expected_counts(world.rank)
        assert equal(buffer.dispatch((x, None), **meta)[0], expected[0])  # No scales, either way.
        from_me = torch.tensor([in_ranks(inputs(r)[1])[:, world.rank].sum() for r in range(RANKS)])
        assert equal(handle[0][:, world.rank], from_me.cumsum(0).to(torch.int32))
        assert len(handle) == 6
        assert equal(buffer.combine(rows, handle)[0], expected_sum(x, topk_idx))

        worst = 100
        meta.update(topk_idx=topk_idx, topk_weights=topk_weights, num_worst_tokens=worst)
        rows, ids, weights, counts, handle, _ = buffer.dispatch(x, **meta)
        assert counts == []
        received = len(expected[0])
        assert [len(tensor) for tensor in (rows, ids, weights)] == [worst] * 3
        for seen, wanted in zip((rows, ids, weights), expected, strict=True):
            assert equal(seen[:received], wanted)
        assert (ids[received:] == -1).all()
        home, home_weights, _ = buffer.combine(rows, handle, topk_weights=weights)
        assert equal(home, expected_sum(x, topk_idx))
        assert equal(home_weights, topk_weights.where(topk_idx >= 0, 0))

    run(layer)


def in_group(rank: int, port: int) -> None:
    os.environ["MASTER_PORT"] = str(port)
    number, size, group = init_dist(rank, 2)
    assert (number, size) == (rank, 2)
    buffer = deep_ep.Buffer(group, NVL_BYTES, explicitly_destroy=True, device="host")
    assert (buffer.rank, buffer.group_size, buffer.group) == (rank, 2, group)
    x = torch.full((4, HIDDEN), float(rank))  # bfloat16, by init_dist.
    ids = torch.tensor([[0, 3]] * 4)
    layout = buffer.get_dispatch_layout(ids, 4)
    rows, *_, handle, _ = buffer.dispatch(
        x,
        topk_idx=ids,
        topk_weights=torch.ones(4, 2, dtype=torch.float),
        num_tokens_per_expert=layout[2],
    )
    assert rows[:, 0].tolist() == [0] * 4 + [1] * 4
    assert equal(buffer.combine(rows, handle)[0], 2 * x)
    buffer.destroy()
    dist.barrier()
    dist.destroy_process_group()


def test_a_buffer_of_a_process_group() -> None:
    port = HeldPort()
    torch.multiprocessing.spawn(in_group, (port.number,), nprocs=2)


@pytest.mark.parametrize(
    "program",
    [
        "legacy/test_intranode.py",
        "legacy/test_low_latency.py",
        "legacy/test_low_latency.py --use-logfmt",
        "legacy/test_low_latency.py --shrink-test",  # In which ranks 1, 3 and 5 fail.
        "elastic/test_ep.py --skip-perf-test",  # Its measurements take a quarter of an hour.
    ],
)
def test_deep_eps_own_tests(program: str, deep_ep_checkout: Path | None) -> None:
    if deep_ep_checkout is None:
        pytest.skip("needs --deep-ep FOLDER, a checkout of DeepEP")
    gpus = torch.cuda.device_count()
    if gpus < 2:
        pytest.skip("needs two GPUs: DeepEP's tests meet through NCCL")
    ranks = 4 if gpus >= 4 else 2
    if "--shrink-test" in program:
        ranks = 6
        if gpus < ranks:
            pytest.skip("needs six GPUs; test_ranks_that_fail_are_masked... does it with fewer")
    name, *options = program.split()
    done = run_python(
        deep_ep_checkout / "tests" / name,
        "--num-processes",
        f"{ranks}",
        *options,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join([str(PACKAGE), *sys.path])),
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("option", [[], ["--use-logfmt"], ["--disable-nvlink"]])
def test_deep_eps_low_latency_test_between_hosts(
    option: list[str], deep_ep_checkout: Path | None
) -> None:
    """Two nodes of one GPU each that call themselves two hosts run DeepEP's test unmodified."""
    if deep_ep_checkout is None:
        pytest.skip("needs --deep-ep FOLDER, a checkout of DeepEP")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs: DeepEP's tests meet through NCCL")
    port = HeldPort()
    common = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join([str(PACKAGE), *sys.path]),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port.number),
        WORLD_SIZE="2",
    )
    program = deep_ep_checkout / "tests" / "legacy" / "test_low_latency.py"
    nodes = [
        start_python(
            program,
            "--num-processes",
            "1",
            *option,
            env=dict(
                common,
                RANK=str(node),
                CUDA_VISIBLE_DEVICES=str(node),
                TOKENYARD_HOST_NAME=f"host {node}",
            ),
            stderr=subprocess.STDOUT,
        )
        for node in range(2)
    ]
    try:
        told = [node.communicate(timeout=180)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
        port.release()
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(told)


def test_it_stands_in_for_nobody_unasked(tmp_path: Path) -> None:
    assert_beside_the_real_one_it_stops("deep_ep", "deep_ep", tmp_path)


def test_what_cannot_be_had_says_so() -> None:
    def layer(world: tokenyard.World) -> None:
        x, topk_idx, topk_weights = inputs(0)
        buffer = buffer_of(world)
        with pytest.raises(tokenyard.InvalidArgument, match="low_latency_mode"):
            buffer.low_latency_dispatch(x, topk_idx, LARGEST, EXPERTS)
        with pytest.raises(tokenyard.Unsupported, match="dispatch"):
            buffer.internode_dispatch(x)
        with pytest.raises(tokenyard.Unsupported, match="host"):
            buffer.get_comm_stream()
        with pytest.raises(tokenyard.Unsupported, match="call by call"):
            buffer.get_local_buffer_tensor(torch.int8, torch.Size([4]))
        per_expert = torch.zeros(EXPERTS, dtype=torch.int32)
        with pytest.raises(tokenyard.InvalidArgument, match="topk_idx"):
            buffer.dispatch(x, topk_weights=topk_weights, num_tokens_per_expert=per_expert)
        with pytest.raises(tokenyard.InvalidArgument, match="timeout"):
            deep_ep.Buffer(world, NVL_BYTES, timeout=5)
        with pytest.raises(tokenyard.InvalidArgument, match="num_tokens_per_expert"):
            buffer.dispatch(x, topk_idx=topk_idx, topk_weights=topk_weights)
        serving = serving_buffer_of(world)
        with pytest.raises(tokenyard.InvalidArgument, match="round_scale"):
            serving.low_latency_dispatch(x, topk_idx, LARGEST, EXPERTS, use_ue8m0=True)
        with pytest.raises(tokenyard.InvalidArgument, match="enable_shrink"):
            serving.low_latency_clean_mask_buffer()
        with pytest.raises(tokenyard.InvalidArgument, match="num_nvl_bytes"):
            serving.dispatch(
                x, topk_idx=topk_idx, topk_weights=topk_weights, num_tokens_per_expert=per_expert
            )
        with pytest.raises(tokenyard.InvalidArgument, match="explicitly_destroy"):
            serving.destroy()
        with pytest.raises(tokenyard.InvalidArgument, match="group"):
            deep_ep.Buffer(None)
        with pytest.raises(tokenyard.InvalidArgument, match="num_nvl_bytes"):
            deep_ep.Buffer(world, -5)
        with pytest.raises(tokenyard.InvalidArgument, match="num_rdma_bytes"):
            deep_ep.Buffer(world, 0, -5)
        with pytest.raises(tokenyard.InvalidArgument, match="even"):
            deep_ep.Buffer.set_num_sms(3)
        with pytest.raises(tokenyard.InvalidArgument, match="nvl_chunked_send"):
            deep_ep.Config(4, 300, 200)
        # The parts of a handle in a tuple, and the handle of another call.
        meta = dict(topk_idx=topk_idx, topk_weights=topk_weights, num_tokens_per_expert=per_expert)
        rows, *_, handle, _ = buffer.dispatch(x, **meta)
        served = serving.low_latency_dispatch(x, topk_idx, LARGEST, EXPERTS, use_fp8=False)
        for other in (tuple(handle), served[2]):
            with pytest.raises(tokenyard.InvalidArgument, match="handle"):
                buffer.combine(rows, other)
            with pytest.raises(tokenyard.InvalidArgument, match="handle"):
                buffer.dispatch(x, handle=other)
        with pytest.raises(tokenyard.InvalidArgument, match="handle"):
            serving.low_latency_combine(served[0], topk_idx, topk_weights, handle)
        with pytest.raises(tokenyard.InvalidArgument, match="handle"):
            serving.get_next_low_latency_combine_buffer(handle)

    tokenyard.launch(layer, ranks=1, arena_bytes=128 << 20)


def test_errors_of_room_say_which_argument_makes_more() -> None:
    """They name an arena, or an exchange's tokens, which DeepEP's callers do not know."""

    def notes(call: Callable[[], Any]) -> str:
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            call()
        return " ".join(caught.value.__notes__)

    def layer(world: tokenyard.World) -> None:
        per_expert = torch.zeros(EXPERTS, dtype=torch.int32)

        def dispatch(tokens: int) -> Any:
            ids = torch.zeros(tokens, 1, dtype=torch.int64)
            return buffer.dispatch(
                torch.zeros(tokens, 8192, dtype=torch.bfloat16),
                topk_idx=ids,
                topk_weights=ids.float(),
                num_tokens_per_expert=per_expert,
            )

        buffer = deep_ep.Buffer(world, 1 << 20)
        assert "num_nvl_bytes, here 1048576," in notes(lambda: dispatch(64))
        # Tensors keep the rows alive that they view.
        assert "num_nvl_bytes" in notes(lambda: [dispatch(16)[0] for _ in range(32)])
        serving = serving_buffer_of(world)
        x = torch.zeros(1, 7168, dtype=torch.bfloat16)
        ids = torch.zeros(1, 1, dtype=torch.int64)
        assert "num_rdma_bytes" in notes(lambda: serving.low_latency_dispatch(x, ids, 128, EXPERTS))

    tokenyard.launch(layer, ranks=1, arena_bytes=4 << 20)
