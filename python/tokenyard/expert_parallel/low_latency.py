"""Dispatch and combine for serving: few tokens, fixed buffers, hooks, and ranks that may die."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import _tokenyard
from _tokenyard import FailedRank

from ..arrays import A, Arrays, arrays_of
from ..errors import InvalidArgument, invalid
from ..sizes import size_of
from ..world.world import World, check_timeout, native_of
from . import old_spellings
from .batches import (
    Hook,
    LowLatencyCombined,
    LowLatencyReceived,
    Memory,
    RefusedBatch,
    received_of,
)
from .call_device import CallDevice
from .row_formats import BF16, FP8, FP32, IDS, LOW_LATENCY_ROWS


class LowLatency:
    """One rank's end of the low-latency exchange. Made, and its calls made, by all ranks together.

    Calls enqueue and return. A rank that does not answer within a call's timeout is masked: it gets
    nothing and is waited for by nobody, until it is unmasked; what the others bring is exact.

    Args:
        world: of the ranks that take part; all within reach of loads and stores.
        experts: in all, at least one per rank. Each rank holds experts // ranks of them, rank after
            rank, and the first experts % ranks ranks hold one more: see `local_experts`.
        hidden: elements of a token, a multiple of 32.
        topk: experts a token, 1 to 16, no more than there are. (`ExpertParallel` takes more.)
        tokens_max: most tokens a rank gives to one call.
        sms: multiprocessors (on the host: blocks) that a call may use: at least 2, one that sends
            and one that receives; 0: chosen, which is all there are, as far as a call finds work.
        bf16_rows: whether dispatch may deliver "bf16" rows, which takes twice the memory.

    Raises:
        InvalidArgument: an argument cannot be right, or differs from another rank's.
        Unsupported: a rank is not within reach of loads and stores.

    >>> def layer(world):
    ...     exchange = LowLatency(world, experts=4, hidden=32, topk=1, tokens_max=16)
    ...     x = np.full((2, 32), world.rank, ml_dtypes.bfloat16)
    ...     to_next_rank = np.full((2, 1), (world.rank + 1) % 2 * 2, np.int64)
    ...     rows = exchange.dispatch(x, to_next_rank, rows="bf16")
    ...     half = np.full((2, 1), 0.5, np.float32)
    ...     home = exchange.combine(rows.x, rows, half)
    ...     return rows.counts.tolist(), (home.x == 0.5 * world.rank).all().item()
    >>> tokenyard.launch(layer, ranks=2)
    [([2, 0], True), ([2, 0], True)]
    """

    def __init__(
        self,
        world: World,
        *,
        experts: int,
        hidden: int,
        topk: int,
        tokens_max: int,
        sms: int = 0,
        bf16_rows: bool = True,
    ) -> None:
        shape = dict(experts=experts, hidden=hidden, topk=topk, tokens_max=tokens_max)
        native = _tokenyard.LowLatency.make(
            native_of(world),
            **{name: size_of(name, size) for name, size in shape.items()},
            sms=size_of("sms", sms),
            bf16_rows=bool(bf16_rows),
        )
        self.world = world
        self.experts, self.hidden, self.topk = experts, hidden, topk
        self.tokens_max = tokens_max
        self._native = native
        self._device = CallDevice(world.device_index)
        self._bf16_rows = bool(bf16_rows)
        self.hooks_left = 0
        """Hooks that were given out and not called yet."""
        self.unmaskings = 0
        """How often ranks were unmasked here, or calls restarted."""
        self._rows_max = world.size * tokens_max
        """For each expert."""
        self.local_experts: int = native.local_experts
        """Experts of this rank, numbered from `first_expert` on."""
        self.first_expert: int = native.first_expert

    @staticmethod
    def memory(
        *,
        experts: int,
        hidden: int,
        topk: int,
        tokens_max: int,
        ranks: int,
        bf16_rows: bool = True,
    ) -> Memory:
        """Returns what an exchange of these options takes on each rank. Nothing is made."""
        return Memory(
            *_tokenyard.LowLatency.memory(
                experts=size_of("experts", experts),
                hidden=size_of("hidden", hidden),
                topk=size_of("topk", topk),
                tokens_max=size_of("tokens_max", tokens_max),
                bf16_rows=bool(bf16_rows),
                ranks=size_of("ranks", ranks),
            )
        )

    def dispatch(
        self,
        x: A,
        topk_idx: A,
        topk_weights: A | None = None,
        *,
        rows: str = "fp8",
        scales: A | None = None,
        active_ranks: Sequence[bool] | None = None,
        timeout: float | None = None,
        sms: int = 0,
        return_recv_hook: bool = False,
        rows_total: A | None = None,
        waited_cycles: A | None = None,
    ) -> LowLatencyReceived[A]:
        """Sends every token to the ranks that hold its experts, as rows of each. Collective.

        At most two batches may be under way: dispatched, and neither combined nor dropped.

        Args:
            x: [tokens, hidden] bfloat16, or float8_e4m3fn with `scales`. Contiguous, on this rank's
                device, unchanged until the work has ended.
            topk_idx: [tokens, topk] int32 or int64: the experts of each token, -1 for none. An
                expert that stands twice in a token gets one row. An id that is no expert counts as
                -1, and `wait`, `check` or the hook of the batch's combine names it.
            topk_weights: [tokens, topk] float32, finite; those of -1 count for nothing. Given here,
                and not to `combine`, they travel beside the tokens, and no rank's combine need wait
                for them. Each rank may do as it likes.
            rows: what is delivered: "bf16"; "fp8", with float32 scales of largest magnitude / 448;
                "fp8_rounded", with scales rounded up to powers of two; "fp8_ue8m0", with those as
                exponents. The same on all ranks: a rank that differs is masked, and `wait` names
                it.
            scales: of an FP8 x: [tokens, ceil(hidden / 128)] float32, for "fp8_ue8m0"
                [tokens, ceil(hidden / 512)] int32.
            active_ranks: [ranks] who takes part; the others are masked from then on.
            timeout: seconds, the world's without one; of more than 14 minutes, 14.
            sms: multiprocessors of this call; 0: as the object has.
            return_recv_hook: only send. The result's `hook` receives; in between no multiprocessor
                is held.
            rows_total: [local experts] int32: the rows received are added to it.
            waited_cycles: [ranks] int64: cycles until each rank's ids were in are added to it.

        Raises:
            RefusedBatch: a dtype, shape, device or layout, a batch over tokens_max, a timeout or a
                number of multiprocessors that cannot be, at once. This rank took part without
                tokens, so that the others need not wait for it: the error's `received` is their
                rows, to be combined as any.
            InvalidArgument: `rows` that there are not, a third batch under way, a hook that was not
                called. Nothing was launched.
            Cancelled: after World.cancel.
        """
        if rows not in LOW_LATENCY_ROWS or (rows == "bf16" and not self._bf16_rows):
            possible = LOW_LATENCY_ROWS if self._bf16_rows else LOW_LATENCY_ROWS[1:]
            raise invalid("rows", " or ".join(possible), repr(rows))
        hook = bool(return_recv_hook)
        try:
            arrays, check = arrays_of("x", x), self._device.check
            self._check_batch(arrays, x, topk_idx, rows, scales, topk_weights)
            if rows_total is not None:
                shape = (self.local_experts,)
                check("rows_total", rows_total, arrays, ("int32",), shape, written=True)
            how = self._call(arrays, active_ranks, timeout, sms, waited_cycles)
        except InvalidArgument as error:
            batch = self._native.dispatch_nothing(
                LOW_LATENCY_ROWS.index(rows), hook=hook, stream=self._device.stream()
            )
            raise self._refused(error, batch, (x, topk_idx), rows, hook) from None
        batch = self._native.dispatch(
            arrays.to_native(x),
            arrays.to_native(topk_idx),
            None if scales is None else arrays.to_native(scales),
            LOW_LATENCY_ROWS.index(rows),
            topk_weights=None if topk_weights is None else arrays.to_native(topk_weights),
            rows_total=None if rows_total is None else arrays.to_native(rows_total),
            hook=hook,
            **how,
        )
        try:
            batch.require_accepted()
        except InvalidArgument as error:
            raise self._refused(error, batch, (x, topk_idx), rows, hook) from None
        receive = self._hook(batch, rows_total, waited_cycles) if hook else None
        return received_of(batch, arrays, rows, receive, topk_weights is not None)

    def _check_batch(
        self,
        arrays: Arrays,
        x: Any,
        topk_idx: Any,
        rows: str,
        scales: Any | None,
        topk_weights: Any | None,
    ) -> None:
        check = self._device.check
        check("x", x, arrays, BF16 if scales is None else FP8, ("tokens", self.hidden))
        tokens = arrays.shape(x)[0]
        check("topk_idx", topk_idx, arrays, IDS, (tokens, self.topk))
        if scales is not None:
            packed = rows == "fp8_ue8m0"
            words = -(-self.hidden // (512 if packed else 128))
            check("scales", scales, arrays, ("int32",) if packed else FP32, (tokens, words))
        if topk_weights is not None:
            check("topk_weights", topk_weights, arrays, FP32, (tokens, self.topk))

    def _refused(
        self, error: InvalidArgument, batch: Any, given: tuple[Any, ...], rows: str, hook: bool
    ) -> RefusedBatch:
        """Returns the same error, with the others' tokens."""
        arrays = self._device.arrays_like(given)
        received = received_of(batch, arrays, rows, self._hook(batch) if hook else None, False)
        return RefusedBatch(str(error), received=received, **error.__dict__)

    @old_spellings.takes_weights_first(LowLatencyReceived)
    def combine(
        self,
        y: A,
        received: LowLatencyReceived[A],
        topk_weights: A | None = None,
        *,
        out: A | None = None,
        use_logfmt: bool = False,
        active_ranks: Sequence[bool] | None = None,
        timeout: float | None = None,
        sms: int = 0,
        return_recv_hook: bool = False,
        waited_cycles: A | None = None,
    ) -> LowLatencyCombined[A]:
        """Brings results home: for every token the weighted sum over its experts. Collective.

        Each rank sums its experts' rows in float32 and rounds, but sends the only row that it has
        of a token unweighed; the owner adds the ranks up in float32, in the order of the token's
        picks, and rounds. A token that went nowhere gets zeros. The batch ends with it.

        Args:
            y: [local experts, rows_max, hidden] bfloat16: the results, where the rows lay. Read in
                place, whatever memory it is in; see `combine_buffer`.
            received: what the dispatch returned.
            topk_weights: [tokens, topk] float32, finite; those of -1 count for nothing. None if the
                dispatch had them, or there are no tokens.
            out: [tokens, hidden] bfloat16 to write to, apart from y; made anew if None.
            use_logfmt: rows of sums travel as ten-bit logarithms: two thirds of the bytes, an error
                of up to 2.2 % of each rank's part. The same on all ranks, as `rows` of a dispatch.
            active_ranks, timeout, sms, return_recv_hook, waited_cycles: as `dispatch`.

        Raises:
            InvalidArgument: an argument cannot be. Nothing was launched: the batch can be combined
                still, and the others wait for it.
            Cancelled: after World.cancel.
        """
        self._check_received(received)
        arrays = arrays_of("y", y)
        self._device.check("y", y, arrays, BF16, (self.local_experts, self._rows_max, self.hidden))
        tokens = received._batch.tokens
        if received._weights_told and topk_weights is not None:
            raise invalid("topk_weights", "None, since the dispatch had them", "an array")
        if not received._weights_told and not (topk_weights is None and tokens == 0):
            self._device.check("topk_weights", topk_weights, arrays, FP32, (tokens, self.topk))
        if out is None:
            out = arrays.empty((tokens, self.hidden), "bfloat16", y)
        else:
            self._device.check("out", out, arrays, BF16, (tokens, self.hidden), written=True)
        lost = arrays.empty((tokens,), "int32", y)
        self._native.combine(
            arrays.to_native(y),
            None if topk_weights is None else arrays.to_native(topk_weights),
            received._batch,
            arrays.to_native(out),
            arrays.to_native(lost),
            bool(use_logfmt),
            hook=bool(return_recv_hook),
            **self._call(arrays, active_ranks, timeout, sms, waited_cycles),
        )
        hook = None
        if return_recv_hook:
            kept = (y, topk_weights, out, lost, waited_cycles)
            hook = self._hook(received._batch, *kept, ends=True)
        return LowLatencyCombined(x=out, lost=lost, hook=hook)

    def combine_buffer(self, received: LowLatencyReceived[A]) -> A:
        """Returns memory of the exchange for `y`: [local experts, rows_max, hidden] bfloat16."""
        self._check_received(received)
        native = self._native.combine_buffer(received._batch)
        memory: A = received._arrays.from_native(native, "bfloat16")
        return memory

    def failed_ranks(self) -> list[FailedRank]:
        """Returns the masked ranks, and why each is, as far as can be seen now; see `wait`."""
        return self._native.failed_ranks()

    masked = old_spellings.renamed("masked", failed_ranks)

    def write_mask(self, out: Any) -> None:
        """Enqueues, after the calls so far: what is not 0 in `out` says which ranks are masked. The
        host waits for nothing, so a CUDA graph can hold it.

        Args:
            out: [ranks] int32, on this rank's device.
        """
        arrays = arrays_of("out", out)
        self._device.check("out", out, arrays, ("int32",), (self.world.size,), written=True)
        self._native.write_mask(arrays.to_native(out), stream=self._device.stream())

    def update_mask(self, rank: int, masked: bool) -> None:
        """Masks a rank from the next call on, or unmasks it.

        Unmasking waits for this rank's stream, and ends the batches under way, as `restart` does.
        No rank concerned unmasks one before all of them have drained their streams (`wait`, and a
        barrier), nor makes a call before all have done so, and they have made as many; see
        `restart` if they have not.
        """
        self._native.update_mask(size_of("rank", rank), bool(masked))
        self.unmaskings += not masked

    def clear_mask(self) -> None:
        """Unmasks all ranks; see `update_mask`."""
        self._native.clear_mask()
        self.unmaskings += 1

    def epoch(self) -> int:
        """The number of this rank's last call: what ranks agree on before `restart`."""
        return self._native.epoch()

    def restart(self, epoch: int) -> None:
        """Unmasks all ranks, and counts calls from `epoch` on, so that ranks meet again.

        The batches under way end, whoever was masked, since nobody knows which rows others lack:
        their combines and hooks are refused with InvalidArgument, and they are dispatched again.

        The callers see to it: all streams are drained before anyone calls this; all give the same
        epoch, the largest of theirs at least; nobody makes a call before all have returned.
        """
        self._native.restart(size_of("epoch", epoch))
        self.hooks_left = 0
        self.unmaskings += 1

    def check(self) -> None:
        """Raises the error of an enqueued call that has failed by now; does not wait."""
        self._native.check()

    def wait(self) -> None:
        """Waits until the work enqueued on the current stream has ended, then as `check`."""
        self._native.wait(stream=self._device.stream())

    def close(self) -> None:
        """Gives the arena memory back. Collective; no call may follow, nor a hook.

        Where a rank does not come, the memory stays out of use as long as the world lives, since
        that rank may still write there. One that is gone is noticed at once, one that is silent
        after the world's timeout. An exchange that is dropped without this leaves its memory so.

        Raises:
            PeerLost, PeerTimeout: a rank has not come that was not masked.
        """
        self._native.close()

    def _hook(self, batch: Any, *kept: Any, ends: bool = False) -> Hook:
        """`kept`: what the second half of the call reads or writes. `ends`: it ends the batch."""

        def receive(kept: tuple[Any, ...] = kept) -> None:
            self._native.receive(batch, stream=self._device.stream())
            self.hooks_left -= 1
            # Whoever is told before its batch is over would not send what others await.
            if ends:
                self.check()

        self.hooks_left += 1
        return receive

    def _call(
        self,
        arrays: Arrays,
        active_ranks: Sequence[bool] | None,
        timeout: float | None,
        sms: int,
        waited_cycles: Any,
    ) -> dict[str, Any]:
        if waited_cycles is not None:
            shape, check = (self.world.size,), self._device.check
            check("waited_cycles", waited_cycles, arrays, ("int64",), shape, written=True)
        return dict(
            active=[] if active_ranks is None else self._active(active_ranks),
            timeout_s=None if timeout is None else check_timeout(timeout),
            sms=size_of("sms", sms),
            waited_cycles=None if waited_cycles is None else arrays.to_native(waited_cycles),
            stream=self._device.stream(),
        )

    def _active(self, active_ranks: Sequence[bool]) -> list[bool]:
        try:
            active = [bool(active) for active in active_ranks]
        except TypeError:
            kind = type(active_ranks).__name__
            raise invalid("active_ranks", f"{self.world.size} truth values", kind) from None
        if len(active) != self.world.size:
            raise invalid("active_ranks", f"{self.world.size} ranks", str(len(active)))
        if not active[self.world.rank]:
            raise invalid("active_ranks", f"rank {self.world.rank} itself among them", "without it")
        return active

    @staticmethod
    def _check_received(received: Any) -> None:
        if not isinstance(received, LowLatencyReceived):
            raise invalid("received", "what a dispatch returned", type(received).__name__)
