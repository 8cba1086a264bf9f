"""Dispatch and combine for decoding: few tokens, fixed buffers, receive hooks, masked ranks."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import _tokenyard
from _tokenyard import FailedRank

from ..arrays import A, Arrays, arrays_of
from ..closing import Closing
from ..errors import InvalidArgument, invalid
from ..metrics import NOT_COUNTED
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
from .call_totals import CallTotals
from .held_experts import ExpertsChanged, HeldExperts
from .row_formats import BF16, FP8, FP32, IDS, LOW_LATENCY_ROWS


class LowLatency(Closing):
    """Low-latency dispatch and combine. Collective: all ranks make it, and its calls, together.

    Calls are enqueued on torch's current stream (on the host they run at once) and do not wait for
    it. A rank that does not answer within a call's timeout is masked: the others send it nothing
    and do not wait for it until it is unmasked. Results from the remaining ranks are exact.

    Args:
        world: the ranks that take part. Ranks of other hosts are reached by put, see `paths`.
        experts: number of experts over all ranks; without `places_per_rank` at least one per rank.
            Ranks hold experts // ranks consecutive experts each, and the first experts % ranks
            ranks one more, unless `set_expert_map` changes that; see `held_experts`.
        places_per_rank: places for experts on each rank, at least enough for all experts: those
            beyond them hold replicas, or are empty until experts of a lost rank need them. 0: just
            enough, one place per expert.
        hidden: elements per token, a multiple of 32.
        topk: experts per token, 1 to 16, at most `experts`. (`ExpertParallel` allows more.)
        tokens_max: largest number of tokens per rank and call.
        sms: multiprocessors (blocks, on the host) that a call may use, at least 2: one sends and
            one receives. 0: chosen, up to all of them, by how much work a call has.
        bf16_rows: whether dispatch may deliver "bf16" rows, which doubles the memory.
        paths: "topology" reaches ranks by loads and stores where they are possible and by put
            elsewhere; "put" reaches all by put, for which ranks of one host each need a
            `host_name` of their own. The same on all ranks. The attribute of that name says what
            was chosen.
        totals: whether calls add up on the device, for `metrics`, the rows that arrive, their
            bytes, the choices that combines lack, and how long calls wait for each rank: a word per
            local expert and per rank in each call, and a sum over tokens behind each combine. Ranks
            may differ in it.

    Raises:
        InvalidArgument: an argument is wrong, or differs from another rank's.
        Unsupported: a rank is within reach of neither loads and stores nor a network, or `paths`
            asks for a network that is not there.

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
        places_per_rank: int = 0,
        paths: str = "topology",
        totals: bool = False,
    ) -> None:
        if paths not in ("topology", "put"):
            raise invalid("paths", "topology or put", repr(paths))
        shape = dict(experts=experts, hidden=hidden, topk=topk, tokens_max=tokens_max)
        native = _tokenyard.LowLatency.make(
            native_of(world),
            **{name: size_of(name, size) for name, size in shape.items()},
            sms=size_of("sms", sms),
            bf16_rows=bool(bf16_rows),
            places_per_rank=size_of("places_per_rank", places_per_rank),
            only_put=paths == "put",
        )
        self.world = world
        self.experts, self.hidden, self.topk = experts, hidden, topk
        self.tokens_max = tokens_max
        self._native = native
        self._device = CallDevice(world.device_index)
        self._bf16_rows = bool(bf16_rows)
        self.hooks_left = 0
        """Number of returned hooks that were not called yet."""
        self.unmaskings = 0
        """Number of calls here that unmasked ranks, those that restart included."""
        self._held = HeldExperts(native)
        self._totals = self._fresh_totals() if totals else None

    @property
    def local_experts(self) -> int:
        """Number of this rank's places, which hold an expert each unless a map says otherwise."""
        return self._native.local_experts

    @property
    def first_expert(self) -> int:
        """Number of this rank's first place, which holds the expert of that number unless a map
        says otherwise."""
        return self._native.first_expert

    @property
    def paths(self) -> list[str]:
        """How this rank reaches each: "self", "load_store", "put", or "none" for an empty slot."""
        return self._native.paths

    @property
    def _rows_max(self) -> int:
        """Places for rows per expert."""
        return self.world.size * self.tokens_max

    @staticmethod
    def memory(
        *,
        experts: int,
        hidden: int,
        topk: int,
        tokens_max: int,
        ranks: int,
        bf16_rows: bool = True,
        places_per_rank: int = 0,
        put_ranks: int = 0,
    ) -> Memory:
        """Returns the memory that an exchange with these options takes on each rank.

        Allocates nothing. The options are those of the class; `ranks` is the world's size, and
        `put_ranks` how many of the others a rank reaches by put.
        """
        return Memory(
            *_tokenyard.LowLatency.memory(
                experts=size_of("experts", experts),
                hidden=size_of("hidden", hidden),
                topk=size_of("topk", topk),
                tokens_max=size_of("tokens_max", tokens_max),
                bf16_rows=bool(bf16_rows),
                places_per_rank=size_of("places_per_rank", places_per_rank),
                ranks=size_of("ranks", ranks),
                put_ranks=size_of("put_ranks", put_ranks),
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
        """Sends each token to the ranks that hold its experts, one row per expert. Collective.

        At most two batches may be in progress: dispatched, and neither combined nor dropped.

        Args:
            x: [tokens, hidden] bfloat16, or float8_e4m3fn with `scales`. Contiguous, on this rank's
                device, and unchanged until the call has run.
            topk_idx: [tokens, topk] int32 or int64: expert ids of each token, -1 for none. A token
                that names an expert twice is sent to it once. An id out of range counts as -1, and
                `wait`, `check` or the hook of the batch's combine raises InvalidArgument for it.
            topk_weights: [tokens, topk] float32, finite; weights of -1 are ignored. If given here
                instead of to `combine`, they travel beside the tokens, and combine does not have
                to wait for them. Ranks may differ in this.
            rows: format of the delivered rows: "bf16"; "fp8", with float32 scales of largest
                magnitude / 448; "fp8_rounded", with scales rounded up to powers of two;
                "fp8_ue8m0", with these as exponents. The same on all ranks: one that differs is
                masked, and `wait` names it.
            scales: of an FP8 x: [tokens, ceil(hidden / 128)] float32, for "fp8_ue8m0"
                [tokens, ceil(hidden / 512)] int32.
            active_ranks: [ranks] whether each rank takes part; the others are masked from now on.
            timeout: seconds, at most 14 minutes (longer ones are cut); None for the world's.
            sms: multiprocessors of this call; 0 for the exchange's.
            return_recv_hook: whether to send only. The result's `hook` then receives; in between
                the call occupies no multiprocessor.
            rows_total: [local experts] int32 to which the numbers of received rows are added; None
                for the exchange's own, if it keeps `totals`.
            waited_cycles: [ranks] int64 to which the cycles spent waiting for each rank's ids are
                added; None likewise.

        Raises:
            RefusedBatch: a dtype, shape, device or layout is wrong, the batch is over tokens_max,
                or `timeout` or `sms` is out of range. This rank took part without tokens, so that
                the others need not wait for it: combine the error's `received` like any batch.
            InvalidArgument: `rows` is unknown, it would be the third batch in progress, or a hook
                was not called. Nothing was launched.
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
            rows_total=self._rows_total(arrays, rows_total, rows),
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
        """Returns `error` as a RefusedBatch that holds the other ranks' tokens."""
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
        """Returns to each token the weighted sum of its experts' results. Collective.

        Each rank sums its experts' rows of a token in float32 and rounds; a single row is sent as
        it is and weighted by the token's owner. The owner adds the ranks' parts in float32, in the
        order of the token's choices, and rounds. A token that went nowhere gets zeros. The call
        ends the batch.

        Args:
            y: [local experts, rows_max, hidden] bfloat16: results at the places of the received
                rows. Read in place, in any memory; see `combine_buffer`.
            received: the dispatch's result.
            topk_weights: [tokens, topk] float32, finite; weights of -1 are ignored. None if the
                dispatch had them, or there are no tokens.
            out: [tokens, hidden] bfloat16 to write to, not overlapping y; None for a new array.
            use_logfmt: whether rows of sums travel as ten-bit logarithms: two thirds of the bytes,
                an error of up to 2.2 % of each rank's part. Must be the same on all ranks, like
                `rows` of `dispatch`.
            active_ranks, timeout, sms, return_recv_hook, waited_cycles: as `dispatch`.

        Raises:
            InvalidArgument: an argument is wrong. Nothing was launched: the batch can still be
                combined, and the others wait for it.
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
        totals = self._own_totals()
        hook = None
        if return_recv_hook:
            kept = (y, topk_weights, out, lost, waited_cycles)
            hook = self._hook(received._batch, *kept, ends=True, lost=lost)
        elif totals is not None:
            totals.add_lost(lost)
        return LowLatencyCombined(x=out, lost=lost, hook=hook)

    def combine_buffer(self, received: LowLatencyReceived[A]) -> A:
        """Returns memory of the exchange for combine's y: [local experts, rows_max, hidden] bf16.

        The memory is not initialised. Two buffers are allocated by the first call; see `memory`.
        """
        self._check_received(received)
        native = self._native.combine_buffer(received._batch)
        memory: A = received._arrays.from_native(native, "bfloat16")
        return memory

    def failed_ranks(self) -> list[FailedRank]:
        """Returns the masked ranks, and why each is, as known now without waiting; see `wait`."""
        return self._native.failed_ranks()

    masked = old_spellings.renamed("masked", failed_ranks)

    def metrics(self) -> dict[str, Any]:
        """Returns totals of this rank since the exchange was made; waits only for its `totals`.

        They count calls as this host made them, so the replays of a CUDA graph are in one of them.
        `prometheus_text` writes them.

        - `exchange`, `rank`: "low_latency" and this rank.
        - `dispatch_calls`, `combine_calls`, `dispatched_tokens`.
        - `refused_dispatch_calls`: those of dispatch_calls that raised RefusedBatch, made without
          this rank's tokens.
        - `unplaced_choices`: choices of this rank's tokens whose experts had no place on a rank
          that takes part, counted on the device by dispatches, replays included.
        - `masked_by_peer`: list over ranks: 1 for a masked one, else 0.
        - `missing`: totals that nobody keeps, which are none with `totals`. A call's own are in its
          arguments `rows_total` and `waited_cycles`, and in a combine's `lost`.

        An exchange made with `totals` has five more, which count replays and begin anew when ranks
        change. On a GPU they wait for the current stream.

        - `received_choices_by_expert`: list over local experts: rows received.
        - `received_bytes`: of these rows and their scales.
        - `lost_choices`: choices of this rank's tokens that its combines lack: see their `lost`.
        - `wait_cycles_by_peer`: list over ranks: cycles that calls here have waited for a rank.
        - `slowest_rank`: the rank with the most of them; None if calls have not waited.
        """
        mine: dict[str, Any] = {"exchange": "low_latency", "rank": self.world.rank}
        totals = self._own_totals()
        if totals is not None:
            mine |= totals.read()
        missing = NOT_COUNTED if totals is None else ()
        return mine | self._native.metrics() | {"missing": list(missing)}

    def write_mask(self, out: Any) -> None:
        """Enqueues a write of the mask behind the calls so far; a CUDA graph may capture it.

        Args:
            out: [ranks] int32 on this rank's device; becomes nonzero for masked ranks.
        """
        arrays = arrays_of("out", out)
        self._device.check("out", out, arrays, ("int32",), (self.world.size,), written=True)
        self._native.write_mask(arrays.to_native(out), stream=self._device.stream())

    def update_mask(self, rank: int, masked: bool) -> None:
        """Masks a rank from the next call on, or unmasks it.

        Unmasking waits for this rank's stream and ends the batches in progress, like `restart`.
        All ranks concerned must drain their streams (`wait`, then a barrier) before any of them
        unmasks, and all must have unmasked before any makes a call. They must have made the same
        number of calls; if not, use `restart`.
        """
        self._native.update_mask(size_of("rank", rank), bool(masked))
        self.unmaskings += not masked

    def clear_mask(self) -> None:
        """Unmasks all ranks; see `update_mask`."""
        self._native.clear_mask()
        self.unmaskings += 1

    def epoch(self) -> int:
        """Returns the number of this rank's last call, on which ranks agree before `restart`."""
        return self._native.epoch()

    def restart(self, epoch: int) -> None:
        """Unmasks all ranks and numbers calls from `epoch` on, so that ranks are in step again.

        The batches in progress end, whichever ranks were masked, since no rank knows which rows
        others lack: their combines and hooks raise InvalidArgument. Dispatch them again.

        The callers must ensure that all streams are drained before any rank calls this, that all
        pass the same epoch, at least the largest of theirs, and that no rank makes a call before
        all have returned.
        """
        self._native.restart(size_of("epoch", epoch))
        self._has_restarted()

    def set_expert_map(self, expert_at: Sequence[int]) -> None:
        """Sets which expert each place holds, replicas included. Collective, between calls.

        topk_idx names experts, while the rows of a rank lie by its places. Tokens take the places
        of a replicated expert in turn, of those on ranks that take part. A choice whose expert has
        no such place counts as -1, and `LowLatencyCombined.lost` and `metrics` count it. Waits for
        earlier calls. A captured dispatch uses the newest map, if one was set before.

        Args:
            expert_at: [places of all ranks] id of the expert in each place, ordered by rank; -1 for
                an empty place. Empty: the map with which the exchange began.

        Raises:
            InvalidArgument: the map has other places or experts than the exchange, or ranks pass
                different maps.
        """
        last = self.experts - 1
        places = [size_of("expert_at", at, smallest=-1, largest=last) for at in expert_at]
        self._native.set_expert_map(places)

    @property
    def expert_map(self) -> list[int]:
        """Expert at each place of all ranks, ordered by rank; -1 for an empty place. Of evicted
        ranks all are empty."""
        return self._native.expert_map

    @property
    def held_experts(self) -> list[int]:
        """Expert at each place of this rank, or -1: those whose weights it needs."""
        return self._native.held_experts

    @property
    def lost_experts(self) -> list[int]:
        """Experts that have no place: choices of them count as -1, and are counted."""
        return self._native.lost_experts

    def on_experts_changed(self, hook: ExpertsChanged | None) -> None:
        """Sets what is called once this rank holds other experts, with `held_experts`, before a
        call needs them: load their weights there. `set_expert_map`, `evict` and `admit` call it
        last, and so does the first dispatch after the ranks of the job have changed. None:
        nothing."""
        self._held.hook = hook

    def evict(self, ranks: Sequence[int], epoch: int | None = None) -> None:
        """Masks ranks that the others have agreed to go on without, and spreads their experts over
        empty places of the others; those that find none are `lost_experts`.

        All others call it with the same ranks, between the same two calls, so that no token goes to
        a place before its rank knows the expert. No rank waits for another.

        Args:
            ranks: the ranks that are gone.
            epoch: also do what `restart` does, under the same conditions: for ranks that have made
                different numbers of calls.
        """
        gone = [size_of("ranks", rank) for rank in ranks]
        self._native.evict(gone, None if epoch is None else size_of("epoch", epoch))
        if epoch is not None:
            self._has_restarted()

    def admit(self) -> list[int]:
        """Opens the slots of ranks that were replaced. Collective: the other ranks call it while
        each replacement makes its LowLatency with the same options.

        The ranks agree on the epoch from which all count, refill all staging, end the batches in
        progress as `restart` does, and exchange the addresses of their memory. Replacements get the
        expert map, and the experts of their slots are theirs again. CUDA graphs that hold calls
        must be captured anew: the memory whose addresses they hold is gone.

        Returns:
            The ranks that were replaced.

        Raises:
            InvalidArgument: options or expert maps differ, on all ranks alike.
            PeerLost, PeerTimeout: a rank did not take part.
        """
        admitted = self._native.admit()
        self._has_restarted()
        return admitted

    def _has_restarted(self) -> None:
        self.hooks_left = 0
        self.unmaskings += 1

    def check(self) -> None:
        """Raises the error of an enqueued call that has failed; does not wait."""
        self._native.check()

    def wait(self) -> None:
        """Waits for the work enqueued on the current stream, then raises like `check`."""
        self._native.wait(stream=self._device.stream())

    def close(self) -> None:
        """Frees the exchange's arena memory. Collective; neither a call nor a hook may follow.

        If a rank does not take part, the memory stays unused until the world is closed, since that
        rank may still write to it. A rank that is gone is noticed at once, a silent one after the
        world's timeout. An exchange dropped without `close` leaves its memory unused, too.

        Raises:
            PeerLost, PeerTimeout: a rank that was not masked did not take part.
        """
        self._native.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Other ranks may not close theirs after an error, and a wait for them would hide it.
        if error is None:
            self.close()

    def _hook(self, batch: Any, *kept: Any, ends: bool = False, lost: Any = None) -> Hook:
        """Returns the receiving half of a call.

        Args:
            kept: arrays that it reads or writes, kept alive until then.
            ends: whether it ends the batch.
            lost: of a combine, its lost choices.
        """

        def receive(kept: tuple[Any, ...] = kept) -> None:
            self._native.receive(batch, stream=self._device.stream())
            self.hooks_left -= 1
            totals = self._own_totals()
            if lost is not None and totals is not None:
                totals.add_lost(lost)
            # Only at the batch's end: a rank that raised earlier would not send its results.
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
            waited_cycles=self._waited_cycles(arrays, waited_cycles),
            stream=self._device.stream(),
        )

    def _fresh_totals(self) -> CallTotals:
        sizes = [self._row_bytes(rows) for rows in LOW_LATENCY_ROWS]
        return CallTotals(self.world.device_index, self.local_experts, self.world.size, sizes)

    def _row_bytes(self, rows: str) -> int:
        """Returns the bytes of a delivered row and its scales."""
        if rows == "bf16":
            return 2 * self.hidden
        return self.hidden + 4 * -(-self.hidden // (512 if rows == "fp8_ue8m0" else 128))

    def _own_totals(self) -> CallTotals | None:
        """Returns the exchange's totals; others once a recovery has changed the ranks."""
        sizes = (self.local_experts, self.world.size)
        if self._totals is not None and self._totals.sizes != sizes:
            self._totals = self._fresh_totals()
        return self._totals

    def _rows_total(self, arrays: Arrays, given: Any, rows: str) -> Any:
        if given is not None:
            return arrays.to_native(given)
        totals = self._own_totals()
        return None if totals is None else totals.rows(self._row_bytes(rows))

    def _waited_cycles(self, arrays: Arrays, given: Any) -> Any:
        if given is not None:
            return arrays.to_native(given)
        totals = self._own_totals()
        return None if totals is None else totals.waited

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
