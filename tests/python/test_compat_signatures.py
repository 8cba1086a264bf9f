"""Arguments of the deep_ep package: names, order and defaults are DeepEP's."""

from __future__ import annotations

import importlib
import inspect
import os

import pytest
from deep_ep_batch import needs_torch, torch

if torch is not None:
    import deep_ep
    from deep_ep.utils import envs

pytestmark = needs_torch

NONE = inspect.Parameter.empty

TUNING = dict(
    num_sms=20,
    num_max_nvl_chunked_send_tokens=6,
    num_max_nvl_chunked_recv_tokens=256,
    num_max_rdma_chunked_send_tokens=6,
    num_max_rdma_chunked_recv_tokens=256,
)
EVENTS = dict(previous_event=None, async_finish=False, allocate_on_comm_stream=False)
STREAMS = dict(
    previous_event=None,
    previous_event_before_epilogue=None,
    async_with_compute_stream=False,
    allocate_on_comm_stream=False,
)
SIZES = dict(num_max_tokens_per_rank=NONE, hidden=NONE, num_topk=0, use_fp8_dispatch=False)

CALLS = {
    "Config": TUNING,
    "Buffer": dict(
        group=NONE,
        num_nvl_bytes=0,
        num_rdma_bytes=0,
        low_latency_mode=False,
        num_qps_per_rank=24,
        allow_nvlink_for_low_latency_mode=True,
        allow_mnnvl=False,
        explicitly_destroy=False,
        enable_shrink=False,
        comm=None,
    ),
    "Buffer.destroy": {},
    "Buffer.is_sm90_compiled": {},
    "Buffer.set_num_sms": dict(new_num_sms=NONE),
    "Buffer.capture": {},
    "Buffer.get_comm_stream": {},
    "Buffer.get_local_buffer_tensor": dict(dtype=NONE, size=None, offset=0, use_rdma_buffer=False),
    "Buffer.get_dispatch_config": dict(num_ranks=NONE),
    "Buffer.get_combine_config": dict(num_ranks=NONE),
    "Buffer.get_dispatch_layout": dict(topk_idx=NONE, num_experts=NONE, **EVENTS),
    "Buffer.dispatch": dict(
        x=NONE,
        handle=None,
        num_tokens_per_rank=None,
        num_tokens_per_rdma_rank=None,
        is_token_in_rank=None,
        num_tokens_per_expert=None,
        topk_idx=None,
        topk_weights=None,
        expert_alignment=1,
        num_worst_tokens=0,
        config=None,
        **EVENTS,
    ),
    "Buffer.combine": dict(
        x=NONE, handle=NONE, topk_weights=None, bias=None, config=None, **EVENTS
    ),
    "Buffer.internode_dispatch": dict(
        x=NONE,
        handle=None,
        num_tokens_per_rank=None,
        num_tokens_per_rdma_rank=None,
        is_token_in_rank=None,
        num_tokens_per_expert=None,
        topk_idx=None,
        topk_weights=None,
        expert_alignment=1,
        config=None,
        **EVENTS,
    ),
    "Buffer.internode_combine": dict(
        x=NONE, handle=NONE, topk_weights=None, bias=None, config=None, **EVENTS
    ),
    "Buffer.get_low_latency_rdma_size_hint": dict(
        num_max_dispatch_tokens_per_rank=NONE, hidden=NONE, num_ranks=NONE, num_experts=NONE
    ),
    "Buffer.clean_low_latency_buffer": dict(
        num_max_dispatch_tokens_per_rank=NONE, hidden=NONE, num_experts=NONE
    ),
    "Buffer.low_latency_dispatch": dict(
        x=NONE,
        topk_idx=NONE,
        num_max_dispatch_tokens_per_rank=NONE,
        num_experts=NONE,
        cumulative_local_expert_recv_stats=None,
        dispatch_wait_recv_cost_stats=None,
        use_fp8=True,
        round_scale=False,
        use_ue8m0=False,
        async_finish=False,
        return_recv_hook=False,
    ),
    "Buffer.low_latency_combine": dict(
        x=NONE,
        topk_idx=NONE,
        topk_weights=NONE,
        handle=NONE,
        use_logfmt=False,
        zero_copy=False,
        async_finish=False,
        return_recv_hook=False,
        out=None,
        combine_wait_recv_cost_stats=None,
    ),
    "Buffer.low_latency_update_mask_buffer": dict(rank_to_mask=NONE, mask=False),
    "Buffer.low_latency_query_mask_buffer": dict(mask_status=NONE),
    "Buffer.low_latency_clean_mask_buffer": {},
    "Buffer.get_next_low_latency_combine_buffer": dict(handle=NONE),
    "ElasticBuffer": dict(
        group=NONE,
        num_bytes=None,
        num_cpu_bytes=0,
        num_max_tokens_per_rank=0,
        hidden=0,
        num_topk=0,
        use_fp8_dispatch=False,
        deterministic=False,
        allow_hybrid_mode=True,
        allow_multiple_reduction=True,
        prefer_overlap_with_compute=True,
        sl_idx=3,
        num_allocated_qps=0,
        num_cpu_timeout_secs=300,
        num_gpu_timeout_secs=100,
        explicitly_destroy=False,
    ),
    "ElasticBuffer.destroy": {},
    "ElasticBuffer.get_buffer_size_hint": dict(
        group=NONE, **SIZES, allow_hybrid_mode=True, allow_multiple_reduction=True
    ),
    "ElasticBuffer.barrier": dict(use_comm_stream=True, with_cpu_sync=False, sequential=True),
    "ElasticBuffer.capture": {},
    "ElasticBuffer.get_comm_stream": {},
    "ElasticBuffer.get_physical_domain_size": {},
    "ElasticBuffer.get_logical_domain_size": {},
    "ElasticBuffer.get_theoretical_num_sms": dict(
        num_experts=NONE,
        num_topk=NONE,
        num_scaleout_topk=0,
        rdma_gbs=0,
        nvlink_gbs=0,
        sm_read_gbs=200,
        sm_write_gbs=50,
    ),
    "ElasticBuffer.get_theoretical_num_qps": dict(num_sms=NONE),
    "ElasticBuffer.dispatch": dict(
        x=NONE,
        topk_idx=None,
        topk_weights=None,
        cumulative_local_expert_recv_stats=None,
        num_experts=None,
        num_max_tokens_per_rank=None,
        expert_alignment=None,
        num_sms=0,
        num_qps=0,
        **STREAMS,
        handle=None,
        do_handle_copy=True,
        do_cpu_sync=None,
        do_expand=False,
        do_zero_padding=False,
        use_tma_aligned_col_major_sf=False,
    ),
    "ElasticBuffer.combine": dict(
        x=NONE, handle=NONE, topk_weights=None, bias=None, num_sms=0, num_qps=0, **STREAMS
    ),
    "HybridEPBuffer": dict(
        group=NONE,
        hidden_dim=NONE,
        max_num_of_tokens_per_rank=NONE,
        num_local_experts=NONE,
        use_fp8=False,
        num_sms_dispatch_api=None,
        num_sms_combine_api=None,
        num_sms_preprocessing_api=None,
        num_blocks_permute=None,
        num_blocks_unpermute=None,
        load_cached_kernels=False,
        use_shared_buffer=True,
        enable_custom_allgather=False,
        num_of_hybrid_ep_ranks_per_nvlink_domain=None,
        use_mnnvl=None,
    ),
    "HybridEPBuffer.empty_jit_cache": {},
    "HybridEPBuffer.dispatch": dict(
        hidden=NONE,
        scaling_factor=None,
        topk_idx=None,
        topk_weights=None,
        num_of_experts=None,
        probs=None,
        routing_map=None,
        num_dispatched_tokens_tensor=None,
        num_dispatched_tokens=None,
        handle=None,
    ),
    "HybridEPBuffer.combine": dict(hidden=NONE, probs=None, handle=None),
    "HybridEPBuffer.dispatch_with_permute": dict(
        hidden=NONE,
        topk_idx=None,
        topk_weights=None,
        num_of_experts_per_rank=None,
        num_of_experts=None,
        use_fp8=None,
        routing_map=None,
        probs=None,
        scaling_factor=None,
        num_permuted_tokens=None,
        pad_multiple=None,
        handle=None,
        non_blocking=False,
        fuse_permute_dispatch=False,
        num_dispatched_tokens=None,
        use_host_meta=None,
    ),
    "HybridEPBuffer.combine_with_unpermute": dict(
        hidden=NONE,
        probs=None,
        handle=None,
        pad_multiple=None,
        fuse_unpermute_combine=False,
        num_dispatched_tokens=None,
    ),
    "EventHandle.current_stream_wait": {},
    "EventOverlap": dict(event=None, extra_tensors=None),
    "EventOverlap.current_stream_wait": dict(release_handle=False),
    "EventOverlap.register_hook_after_wait": dict(hook_after_wait=NONE),
    "EventOverlap.__call__": dict(release_handle=False),
    "get_physical_domain_size": dict(group=NONE),
    "get_logical_domain_size": dict(group=NONE, allow_hybrid_mode=True),
}
"""They are those of DeepEP's commit dd758ca, HybridEPBuffer's of its branch hybrid-ep's 94a9f8f."""


@pytest.mark.parametrize("name", CALLS)
def test_calls_take_what_deep_eps_take(name: str) -> None:
    call = deep_ep
    for part in name.split("."):
        call = getattr(call, part)
    taken = inspect.signature(call).parameters
    named = {
        key: value.default for key, value in taken.items() if value.kind is not value.VAR_KEYWORD
    }
    named.pop("self", None)
    theirs = CALLS[name]
    assert list(named.items())[: len(theirs)] == list(theirs.items())
    # Additional arguments of ours, and one of DeepEP's branch hybrid-ep.
    assert set(list(named)[len(theirs) :]) <= {"device", "timeout", "choices_max", "use_fabric"}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("deep_ep.buffer", "Buffer"),
        ("deep_ep.buffers.legacy", "Buffer"),
        ("deep_ep.buffers.elastic", "ElasticBuffer"),
        ("deep_ep.buffers.elastic", "EPHandle"),
        ("deep_ep.utils", "EventHandle"),
        ("deep_ep.utils", "EventOverlap"),
        ("deep_ep.utils.event", "EventOverlap"),
    ],
)
def test_names_are_found_where_callers_look(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) is getattr(deep_ep, name)


@pytest.mark.parametrize(
    ("allowed", "site", "told"),
    [(False, None, "host"), (True, None, None), (False, "rack", "rack")],
)
def test_allow_mnnvl_is_obeyed(
    allowed: bool, site: str | None, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if site is None:
        monkeypatch.delenv("TOKENYARD_DOMAIN", raising=False)
    else:
        monkeypatch.setenv("TOKENYARD_DOMAIN", site)
    seen = []

    def join(*_: object) -> None:
        seen.append(os.environ.get("TOKENYARD_DOMAIN"))
        raise InterruptedError

    monkeypatch.setattr(importlib.import_module("deep_ep.buffer"), "join_rendezvous", join)
    with pytest.raises(InterruptedError):
        deep_ep.Buffer(object(), 1 << 20, allow_mnnvl=allowed)
    assert seen == [told]
    assert os.environ.get("TOKENYARD_DOMAIN") == site


def test_what_callers_ask_before_they_make_a_buffer() -> None:
    class Group:
        def size(self) -> int:
            return 3

    major = int(deep_ep.__version__.split(".")[0])
    assert (major >= 2) == hasattr(deep_ep, "ElasticBuffer")
    assert envs.get_physical_domain_size(Group()) == (1, 3)
    assert deep_ep.get_logical_domain_size(Group(), allow_hybrid_mode=False) == (1, 3)
    assert deep_ep.Config() == deep_ep.Config(20, 6, 256, 6, 256)
