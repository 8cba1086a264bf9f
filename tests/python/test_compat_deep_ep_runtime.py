"""The deep_ep package's `runtime`, and its timeouts."""

from __future__ import annotations

import pytest
from deep_ep_batch import NVL_BYTES, needs_torch, torch

import tokenyard

if torch is not None:
    import deep_ep
    import torch.distributed as dist
    from deep_ep import rendezvous

pytestmark = needs_torch


def test_what_callers_ask_of_the_runtime() -> None:
    def layer(world: tokenyard.World) -> None:
        buffer = deep_ep.Buffer(world, NVL_BYTES, explicitly_destroy=True)
        runtime = buffer.runtime
        assert runtime.is_available()
        assert (runtime.get_rdma_rank(), runtime.get_num_rdma_ranks()) == (0, 1)
        assert runtime.get_root_rdma_rank(True) == world.rank
        assert runtime.get_root_rdma_rank(False) == 0
        assert runtime.get_local_device_id() == -1
        runtime.sync([0] * world.size, [None] * world.size, None)
        buffer.destroy()
        assert not runtime.is_available()
        with pytest.raises(tokenyard.InvalidArgument, match="runtime"):
            runtime.sync([], [], None)

    tokenyard.launch(layer, ranks=2)


def test_the_timeout_is_an_option_and_an_environment_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        seen = []
        for option, variable in ((None, None), (None, "7.5"), (3, "7.5")):
            if variable is not None:
                monkeypatch.setenv(rendezvous.TIMEOUT_VARIABLE, variable)
            buffer = deep_ep.Buffer(
                dist.group.WORLD, device="host", explicitly_destroy=True, timeout=option
            )
            seen.append(buffer._world.timeout)
            buffer.destroy()
        assert seen == [100, 7.5, 3]
        for wrong in ("soon", "-1", "nan"):
            monkeypatch.setenv(rendezvous.TIMEOUT_VARIABLE, wrong)
            with pytest.raises(tokenyard.InvalidArgument, match=rendezvous.TIMEOUT_VARIABLE):
                deep_ep.Buffer(dist.group.WORLD, device="host")
        with pytest.raises(tokenyard.InvalidArgument, match="timeout"):
            deep_ep.Buffer(dist.group.WORLD, device="host", timeout=0)
    finally:
        dist.destroy_process_group()
