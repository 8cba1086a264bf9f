"""A process group of torch over a group of a Tokenyard job: its operations."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tokenyard.errors import invalid

from .pg_membership import CPU, Membership
from .pg_options import MooncakeBackendOptions
from .pg_work import LOST, MooncakeWork

LOSS_NOTICED_S = 10.0
"""Seconds within which a rank that has ended is known to be lost, if its host runs."""


class _Device:
    """The C++ backend for torch's Python code, which must not coalesce messages.

    Each message has a work of its own, of which `get_local_success` tells the outcome.
    """

    supports_coalescing = False

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class MooncakeProcessGroup(dist.ProcessGroup):
    """One rank's end of a process group; made by torch, with a backend of `mooncake.pg`."""

    def __init__(self, described: Any, options: MooncakeBackendOptions) -> None:
        super().__init__(described.store, described.group_rank, described.group_size)
        begins_job = not isinstance(dist.group.WORLD, MooncakeProcessGroup)
        self.membership = Membership(described, options, self, begins_job=begins_job)
        self._backend = self.membership.backend
        kind = dist.ProcessGroup.BackendType.CUSTOM
        self._register_backend(CPU, kind, self._backend)
        self._set_default_backend(kind)

    def size(self) -> int:
        """Returns one more than the highest active rank; alone, the size that was declared."""
        return self.membership.size()

    getSize = size  # noqa: N815  C++ calls it by this name.

    def name(self) -> str:
        return "mooncake"

    getBackendName = name  # noqa: N815

    def shutdown(self) -> None:
        """Leaves the group; torch calls it when the group is destroyed."""
        self.membership.end(leaves=True)

    def abort(self) -> None:
        """Leaves the group without waiting for other ranks."""
        self.membership.end()

    # Operations. torch's Python code calls these, and its C++ code by way of PyProcessGroup.

    def _get_backend(self, device: torch.device) -> Any:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"No backend type associated with device type {device}")
        return _Device(self._backend)

    def _begin(self, call: Callable[[], dist.Work], peer: int | None = None) -> MooncakeWork:
        expected = self.membership.active_slots()
        try:
            return MooncakeWork(self.membership, expected, call(), peer)
        except LOST as error:
            self.membership.refresh()
            self.membership.note_failure()
            return MooncakeWork(self.membership, expected, None, peer, error)

    def allreduce(self, *args: Any, **named: Any) -> MooncakeWork:
        return self._begin(lambda: self._backend.allreduce(*args, **named))

    def allreduce_coalesced(self, *args: Any, **named: Any) -> MooncakeWork:
        return self._begin(lambda: self._backend.allreduce_coalesced(*args, **named))

    def reduce(self, *args: Any, **named: Any) -> MooncakeWork:
        return self._begin(lambda: self._backend.reduce(*args, **named))

    def broadcast(self, *args: Any, **named: Any) -> MooncakeWork:
        return self._begin(lambda: self._backend.broadcast(*args, **named))

    def barrier(self, *args: Any, **named: Any) -> MooncakeWork:
        return self._begin(lambda: self._backend.barrier(*args, **named))

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> MooncakeWork:
        return self._begin(lambda: self._backend.send(tensors, dst, tag), peer=dst)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> MooncakeWork:
        return self._begin(lambda: self._backend.recv(tensors, src, tag), peer=src)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> MooncakeWork:
        return self._begin(lambda: self._backend.recv_anysource(tensors, tag))

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], *options: Any
    ) -> MooncakeWork:
        lists = [self._whole(parts, "tensor_list", inputs[0]) for parts in outputs]
        return self._begin(lambda: self._backend.allgather(lists, inputs, *options))

    def all_gather_single(
        self, whole: torch.Tensor, part: torch.Tensor, *options: Any
    ) -> MooncakeWork:
        if whole.numel() == self.membership.parts * part.numel():
            return self._begin(lambda: self._backend._allgather_base(whole, part, *options))
        lists = [self._whole(_cut("output_tensor", whole, part), "output_tensor", part)]
        return self._begin(lambda: self._backend.allgather(lists, [part], *options))

    _allgather_base = all_gather_single

    def gather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], *options: Any
    ) -> MooncakeWork:
        lists = [self._whole(parts, "gather_list", inputs[0]) for parts in outputs if parts]
        return self._begin(lambda: self._backend.gather(lists or outputs, inputs, *options))

    def scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], *options: Any
    ) -> MooncakeWork:
        lists = [self._whole(parts, "scatter_list", outputs[0]) for parts in inputs if parts]
        return self._begin(lambda: self._backend.scatter(outputs, lists or inputs, *options))

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], *options: Any
    ) -> MooncakeWork:
        lists = [self._whole(parts, "input_list", outputs[0]) for parts in inputs]
        return self._begin(lambda: self._backend.reduce_scatter(outputs, lists, *options))

    def reduce_scatter_single(
        self, part: torch.Tensor, whole: torch.Tensor, *options: Any
    ) -> MooncakeWork:
        if whole.numel() == self.membership.parts * part.numel():
            return self._begin(lambda: self._backend._reduce_scatter_base(part, whole, *options))
        lists = [self._whole(_cut("input", whole, part), "input", part)]
        return self._begin(lambda: self._backend.reduce_scatter([part], lists, *options))

    _reduce_scatter_base = reduce_scatter_single

    def alltoall(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], *options: Any
    ) -> MooncakeWork:
        into = self._whole(outputs, "output_tensor_list", outputs[0])
        from_ = self._whole(inputs, "input_tensor_list", inputs[0])
        return self._begin(lambda: self._backend.alltoall(into, from_, *options))

    def all_to_all_single(
        self,
        into: torch.Tensor,
        rows: torch.Tensor,
        into_splits: list[int],
        rows_splits: list[int],
        *options: Any,
    ) -> MooncakeWork:
        into_splits = self._split_sizes(into, into_splits, "output_split_sizes")
        rows_splits = self._split_sizes(rows, rows_splits, "input_split_sizes")
        return self._begin(
            lambda: self._backend.alltoall_base(into, rows, into_splits, rows_splits, *options)
        )

    alltoall_base = all_to_all_single

    def _split_sizes(self, tensor: torch.Tensor, splits: list[int], argument: str) -> list[int]:
        """Returns sizes for all places; without sizes, each rank below the group's has as much."""
        parts, size = self.membership.parts, self.size()
        if not splits and size == parts:
            return splits
        if not splits:
            rows = tensor.shape[0] if tensor.dim() > 0 else 1
            if rows % size != 0:
                raise invalid(argument, f"rows that {size} ranks can share equally", str(rows))
            splits = [rows // size] * size
        if 0 < len(splits) < parts:
            self._await_loss(len(splits), argument)
        return [*splits, *[0] * (parts - len(splits))]

    def _whole(
        self, parts: list[torch.Tensor], argument: str, like: torch.Tensor
    ) -> list[torch.Tensor]:
        """Returns one part per place, given one per rank below the size that a caller sees.

        A caller that leaves out the last ranks knows that they are lost, perhaps before this rank's
        job does: then the call waits for that. No rank that runs gets or gives a part in vain.
        """
        missing = self.membership.parts - len(parts)
        if missing <= 0:
            return parts
        self._await_loss(len(parts), argument)
        return [*parts, *(torch.zeros_like(like) for _ in range(missing))]

    def _await_loss(self, first: int, argument: str) -> None:
        end = time.monotonic() + LOSS_NOTICED_S
        while running := self.membership.active_beyond(first):
            if time.monotonic() > end:
                seen = f"{first}, but ranks {running} are active"
                raise invalid(argument, f"{self.membership.parts} parts", seen)
            time.sleep(0.002)


def _cut(argument: str, whole: torch.Tensor, part: torch.Tensor) -> list[torch.Tensor]:
    """Returns views of a contiguous tensor, each as large as `part`."""
    each = part.numel()
    if each == 0 or whole.numel() % each != 0 or not whole.is_contiguous():
        raise invalid(argument, f"contiguous, a multiple of {each} elements", str(whole.numel()))
    return [piece.view(part.shape) for piece in whole.view(-1).split(each)]


def membership_of(group: Any) -> Membership:
    """Returns that of `group`, or of the default group if None.

    Raises:
        InvalidArgument: the group is of another backend.
    """
    chosen = dist.group.WORLD if group is None else group
    if not isinstance(chosen, MooncakeProcessGroup):
        raise invalid("backend", "a process group of backend mooncake-cpu", repr(chosen))
    return chosen.membership
