"""Dispatch and combine for throughput: any number of tokens, rows ordered by source."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Unpack, overload

import _tokenyard
from _tokenyard import FailedRank

from ..arrays import A, arrays_of
from ..closing import Closing
from ..errors import invalid
from ..sizes import size_of
from ..world.world import World, native_of
from . import old_spellings
from .arguments import (
    CombineOptions,
    choices_of_dispatch,
    dtype_of_results,
    route_of,
    rows_of_dispatch,
)
from .call_device import CallDevice
from .held_experts import ExpertsChanged, HeldExperts
from .received import (
    Combined,
    DispatchMemory,
    ExpertRows,
    Load,
    Moment,
    Received,
    Rings,
    Route,
)
from .row_formats import FP32, MOVED, SUMMED, form_of, scale_order
from .tracing import write_perfetto


class ExpertParallel(Closing):
    """Dispatch and combine for training and prefill. Collective: all ranks make it alike.

    Args:
        world: the ranks that take part.
        experts: number of experts over all ranks. Ranks hold experts // ranks consecutive experts
            each, and the first experts % ranks ranks one more, unless `set_expert_map` changes
            that; see `held_experts`.
        places_per_rank: places for experts on each rank, at least enough for all experts: those
            beyond them hold replicas, or are empty until experts of a lost rank need them. 0: just
            enough, one place per expert.
        hidden: elements per token, a multiple of 8.
        topk: experts per token, 1 to 256.
        tokens_max: largest number of tokens per rank and call; bounds the memory that a call
            reserves.
        sms: multiprocessors (blocks, on the host) that a call may use; 0: chosen, see `sms`.
        sms_max: largest `sms` of a single call; 0: the same as `sms`.
        ring_rows: between hosts, BF16 rows in the ring of each rank of another host that this rank
            exchanges rows with; 0: chosen, see `rings`. No result depends on it.
        chunk_rows: between hosts, rows per put and per credit, at least, while more are to come; 0:
            chosen. Half a ring at most.
        fp32_partials: between hosts, send a host's sums of bfloat16 or float16 results as float32:
            a combine then rounds once, and twice the bytes cross the network.

    Raises:
        InvalidArgument: an argument is wrong, or differs from another rank's.
        Unsupported: a rank of this host is not within reach of loads and stores, or one of
            another host not within reach of the network.

    >>> def layer(world):
    ...     exchange = ExpertParallel(world, experts=4, hidden=8, topk=1, tokens_max=16)
    ...     x = np.full((2, 8), world.rank, ml_dtypes.bfloat16)
    ...     to_next_rank = np.full((2, 1), (world.rank + 1) % 2 * 2, np.int64)
    ...     received = exchange.dispatch(x, to_next_rank, np.ones((2, 1), np.float32))
    ...     home = exchange.combine(received.x, received)
    ...     return received.rows_from, received.tokens_per_expert, (home == x).all().item()
    >>> tokenyard.launch(layer, ranks=2)
    [([0, 2], [2, 0], True), ([2, 0], [2, 0], True)]
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
        sms_max: int = 0,
        places_per_rank: int = 0,
        ring_rows: int = 0,
        chunk_rows: int = 0,
        fp32_partials: bool = False,
    ) -> None:
        shape = dict(experts=experts, hidden=hidden, topk=topk, tokens_max=tokens_max)
        native = _tokenyard.ExpertParallel.make(
            native_of(world),
            **{name: size_of(name, size) for name, size in shape.items()},
            places_per_rank=size_of("places_per_rank", places_per_rank),
            sms=size_of("sms", sms),
            sms_max=size_of("sms_max", sms_max),
            ring_rows=size_of("ring_rows", ring_rows),
            chunk_rows=size_of("chunk_rows", chunk_rows),
            fp32_partials=bool(fp32_partials),
        )
        self.world = world
        self.experts, self.hidden, self.topk = experts, hidden, topk
        self.tokens_max = tokens_max
        self._native = native
        self._device = CallDevice(world.device_index)
        self._held = HeldExperts(native)

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
    def sms(self) -> int:
        """Number of multiprocessors (blocks, on the host) that a call uses."""
        return self._native.sms

    @property
    def sms_reason(self) -> str:
        """The reason for the value of `sms`, in a sentence."""
        return self._native.sms_reason

    @property
    def rings(self) -> Rings:
        """How BF16 rows travel between hosts: as was chosen, or asked for."""
        return Rings(*self._native.rings)

    @old_spellings.static_memory
    def memory(
        *,
        experts: int,
        hidden: int,
        topk: int,
        tokens_max: int,
        ranks: int,
        tokens: int | None = None,
        rows_received: int | None = None,
        dtype: str = "bfloat16",
        row_bytes: int = 0,
        scale_words: int = 0,
        sms: int = 0,
        sms_max: int = 0,
        places_per_rank: int = 0,
        hosts: int = 1,
        ring_rows: int = 0,
    ) -> DispatchMemory:
        """Returns the arena memory that an exchange of these options and one of its dispatches take
        on each rank. Nothing is made.

        Args:
            experts, hidden, topk, tokens_max, sms, sms_max, places_per_rank, ring_rows: options of
                the exchange.
            ranks: number of ranks of its world.
            tokens: tokens that a rank dispatches; None: tokens_max.
            rows_received: rows that it receives; None: the most that may arrive.
            dtype: dtype of the rows.
            row_bytes: bytes per row, for uint8 only; else 0.
            scale_words: 4-byte words of scales per row.
            hosts: number of hosts of its world, with equally many ranks each.

        Raises:
            InvalidArgument: options that no exchange can have, or sizes that exceed them.
        """
        if dtype not in MOVED:
            raise invalid("dtype", " or ".join(MOVED), dtype)
        most = size_of("tokens_max", tokens_max)
        number = size_of("ranks", ranks)
        rows = min(number * most, 2**32 - 1) if rows_received is None else rows_received
        return DispatchMemory(
            *_tokenyard.ExpertParallel.memory(
                experts=size_of("experts", experts),
                hidden=size_of("hidden", hidden),
                topk=size_of("topk", topk),
                tokens_max=most,
                sms=size_of("sms", sms),
                sms_max=size_of("sms_max", sms_max),
                places_per_rank=size_of("places_per_rank", places_per_rank),
                ranks=number,
                tokens=most if tokens is None else size_of("tokens", tokens),
                rows_received=size_of("rows_received", rows),
                type=_tokenyard.DataType[dtype],
                row_bytes=size_of("row_bytes", row_bytes),
                scale_words=size_of("scale_words", scale_words),
                hosts=size_of("hosts", hosts),
                ring_rows=size_of("ring_rows", ring_rows),
            )
        )

    @old_spellings.takes_as_fp8
    def dispatch(
        self,
        x: A,
        topk_idx: A | None = None,
        topk_weights: A | None = None,
        *,
        route: Route | None = None,
        rows: str | None = None,
        scales: A | None = None,
        scales_by_columns: bool = False,
        scale_channels: int = 128,
        received_tokens_max: int = 0,
        watcher: Any = None,
        sms: int = 0,
    ) -> Received[A]:
        """Sends each token once to every rank that holds one of its experts. Collective.

        Waits on the host until the counts of all ranks are known. On a GPU the rows may still be in
        transit; work enqueued on torch's current stream sees them complete. Inputs must not change
        until then. With `received_tokens_max` the host does not wait, and a CUDA graph may capture
        the call.

        Args:
            x: [tokens, hidden] bfloat16, float16, float32 or float8_e4m3fn, or [tokens, bytes]
                uint8 (opaque), contiguous, on this rank's device. Never converted implicitly.
            topk_idx: [tokens, topk] int32 or int64: expert ids of each token, -1 for none.
            topk_weights: [tokens, topk] float32; None: every choice has weight 1.
            route: use the experts and weights of the dispatch that made this route, instead of
                topk_idx and topk_weights. The number of tokens must be the same; the dtype may
                differ. Counts are not exchanged again.
            rows: format of the delivered rows of a bfloat16 x, which is cast before it is sent:
                "bf16"; "fp8", with float32 scales of a group's largest magnitude / 448;
                "fp8_ue8m0", with scales rounded up to powers of two, the exponents of four groups
                packed into an int32. None: x unchanged, of any dtype.
            scales: [tokens, words] float32 or int32, or [tokens, bytes] uint8 (a multiple of 4),
                sent beside the rows unchanged.
            scales_by_columns: whether to receive scales (float32 or int32) by columns, each 16-byte
                aligned, as grouped GEMMs read them by TMA.
            scale_channels: channels per scale of rows that are cast here: 16, 32, ... 512, a
                divisor of hidden.
            received_tokens_max: if not 0, the number of places for rows in the results. Empty
                places have -1 in topk_idx and source_token. If any rank receives more rows,
                `check`, `wait` or a later call raises InvalidArgument on all ranks, and the
                exchange cannot be used any more.
            watcher: a torch stream whose kernels may start on rows as they arrive: the result then
                has `sources_ready` and `experts_ready`. The stream waits until these are cleared,
                but not for the call. (On the host, where a call is complete when it returns,
                anything but None.)
            sms: multiprocessors of this call, at most sms_max; 0 for the exchange's.

        Raises:
            InvalidArgument: a dtype, shape, device or layout is wrong: before anything is
                launched. An expert id is out of range or repeated within a token, `rows` or scales
                differ from rank 0's, or ranks make different calls: on all ranks alike, before any
                row moves.
            PeerTimeout, PeerLost: a rank did not take part, or is gone. On a job's world the
                exchange goes on with its first dispatch after `Job.recover`, `shrink`, `replace` or
                `grow`; with on_failure "retry" or "exclude" this call does all of that by itself.
                Elsewhere the exchange cannot be used any more; `World.rebuild` continues without
                that rank.
            OperationAborted: the first call after a loss, on a rank where an earlier call has
                returned that not all ranks have finished: names it. Make that one again.
        """
        arrays = arrays_of("x", x)
        tokens = route.tokens if isinstance(route, Route) else "tokens"
        common = rows_of_dispatch(
            self._device,
            self.hidden,
            x,
            arrays,
            tokens,
            scales,
            scales_by_columns,
            rows,
            scale_channels,
        )
        watching = None if watcher is None else self._device.stream_of("watcher", watcher)
        common |= dict(watcher=watching, sms=size_of("sms", sms))
        if route is not None:
            if topk_idx is not None or topk_weights is not None:
                raise invalid("route", "no topk_idx and topk_weights beside it", "both")
            if received_tokens_max:
                raise invalid(
                    "received_tokens_max", "none beside a route", str(received_tokens_max)
                )
            if not isinstance(route, Route):
                raise invalid("route", "a Route from a dispatch", type(route).__name__)
            native = self._native.dispatch_again(arrays.to_native(x), route._native, **common)
        else:
            native = self._native.dispatch(
                arrays.to_native(x),
                *choices_of_dispatch(self._device, self.topk, x, topk_idx, topk_weights, arrays),
                received_tokens_max=size_of("received_tokens_max", received_tokens_max),
                **common,
            )
        return Received(native, arrays, form_of(x, scales, rows, arrays, scales_by_columns))

    @old_spellings.takes_as_fp8
    def dispatch_by_expert(
        self,
        x: A,
        topk_idx: A,
        topk_weights: A | None = None,
        *,
        alignment: int = 1,
        rows_max: int = 0,
        clear_padding: bool = True,
        rows: str | None = None,
        scales: A | None = None,
        scales_by_columns: bool = False,
        scale_channels: int = 128,
        received_tokens_max: int = 0,
        sms: int = 0,
    ) -> tuple[Received[A], ExpertRows[A]]:
        """Dispatches, and groups rows by expert while they arrive. Collective.

        The result is that of `dispatch` followed by `group_by_expert`, but available earlier.

        Args:
            alignment, clear_padding: as `group_by_expert`.
            rows_max: number of places for rows, padding included. 0: enough for all rows that may
                arrive, which the arena must be able to hold until the counts are known.
            x, topk_idx, topk_weights, rows, scales, scales_by_columns, scale_channels,
            received_tokens_max, sms: as `dispatch`.

        Returns:
            The received metadata, without `x` and `scales`, and the grouped rows with theirs.

        Raises:
            InvalidArgument: more rows than places on this rank (with `received_tokens_max`: raised
                later, and the exchange cannot be used any more); and as `dispatch`.
            PeerTimeout, PeerLost: as `dispatch`.
        """
        arrays = arrays_of("x", x)
        common = rows_of_dispatch(
            self._device,
            self.hidden,
            x,
            arrays,
            "tokens",
            scales,
            scales_by_columns,
            rows,
            scale_channels,
        )
        received, grouped = self._native.dispatch_by_expert(
            arrays.to_native(x),
            *choices_of_dispatch(self._device, self.topk, x, topk_idx, topk_weights, arrays),
            received_tokens_max=size_of("received_tokens_max", received_tokens_max),
            alignment=size_of("alignment", alignment),
            rows_max=size_of("rows_max", rows_max),
            clear_padding=bool(clear_padding),
            sms=size_of("sms", sms),
            **common,
        )
        form = form_of(x, scales, rows, arrays, scales_by_columns)
        return Received(received, arrays, form), ExpertRows(grouped, arrays, form)

    def group_by_expert(
        self,
        received: Received[A],
        *,
        alignment: int = 1,
        rows_max: int = 0,
        clear_padding: bool = True,
        scales_by_columns: bool = False,
        sms: int = 0,
    ) -> ExpertRows[A]:
        """Groups received rows by expert. Not collective; the host does not wait.

        Args:
            received: a dispatch's result, with its scales stored by rows.
            alignment: each expert's first row is a multiple of this; gaps are padding.
            rows_max: number of places in the result, padding included; required after a dispatch
                with `received_tokens_max`, where the host has no counts.
            clear_padding: whether padding is zeros; if not, it is undefined, and its stores are
                saved.
            scales_by_columns: as `dispatch`.
            sms: multiprocessors of this call, any number, since no other rank takes part; 0 for
                the exchange's.

        Raises:
            InvalidArgument: a dtype or layout is wrong, or there are too few places (if the host
                has no counts: raised later).
        """
        if not isinstance(received, Received):
            raise invalid("received", "what a dispatch brought", type(received).__name__)
        arrays, form = received._arrays, received._form
        if scales_by_columns and form.scale_dtype == "uint8":
            raise invalid("received", "scales of float32 or int32, to lie by columns", "of uint8")
        native = self._native.group_by_expert(
            received.native,
            alignment=size_of("alignment", alignment),
            rows_max=size_of("rows_max", rows_max),
            clear_padding=bool(clear_padding),
            scale_order=scale_order(scales_by_columns),
            sms=size_of("sms", sms),
            stream=self._device.stream(),
        )
        return ExpertRows(native, arrays, form._replace(by_columns=scales_by_columns))

    expand = old_spellings.renamed("expand", group_by_expert)

    @overload
    def combine(
        self,
        y: A,
        received: Received[A] | Route,
        topk_weights: None = None,
        **options: Unpack[CombineOptions[A]],
    ) -> A: ...
    @overload
    def combine(
        self,
        y: A,
        received: Received[A] | Route,
        topk_weights: A,
        **options: Unpack[CombineOptions[A]],
    ) -> Combined[A]: ...
    @old_spellings.takes_route_and_weights
    def combine(
        self,
        y: A,
        received: Received[A] | Route,
        topk_weights: A | None = None,
        *,
        out: A | None = None,
        bias: A | tuple[A, A] | None = None,
        rank_order: A | None = None,
        by_expert: ExpertRows[A] | None = None,
        weighted: bool = False,
        sms: int = 0,
        local_sms: int = 0,
    ) -> A | Combined[A]:
        """Returns to each token the sum of its results over the ranks it went to. Collective.

        Sums are taken in float32, of the biases first, then of the ranks in order, and rounded once
        to y's dtype. A token that went nowhere gets the biases or zeros. Routing weights are not
        applied unless `weighted` is set: scale the rows before the call.

        Args:
            y: [rows received, hidden] bfloat16, float16 or float32: row i is the result for
                received row i. If the received rows have one of these dtypes, y must have it, too,
                unless `out` is given. Read in place if it is a `combine_buffer`, else copied
                into the arena first.
            received: the dispatch's result, or its route.
            topk_weights: [rows received, topk] float32 to return beside the rows.
            out: [tokens, hidden] of y's dtype to write to, not overlapping y; None for a new array.
            bias: [tokens, hidden] of y's dtype, or a pair of them, with which the sums begin.
            rank_order: [tokens, ranks] int32: the order in which a token's ranks are added, each
                once; None: ascending. The sum of another host, which that host adds in rank order,
                counts for the first of its ranks.
            by_expert: y is laid out like these rows, [rows, hidden]. Each rank then first adds a
                token's results in float32, in the order of its choices, and rounds to y's dtype;
                these sums are sent and added as above.
            weighted: whether that first sum multiplies each result by its routing weight.
            sms: as `dispatch`.
            local_sms: multiprocessors, any number, that finish the first sum before rows are
                sent; 0: some of `sms` compute it while the others pull.

        Returns:
            [tokens, hidden] of y's dtype; with `topk_weights`, a `Combined` of it and the
            weights.

        Raises:
            InvalidArgument, PeerTimeout, PeerLost: as `dispatch`.
        """
        route = route_of(received)
        arrays = arrays_of("y", y)
        rows, tokens = route.rows_received, route.tokens
        if by_expert is not None:
            if not isinstance(by_expert, ExpertRows):
                raise invalid("by_expert", "ExpertRows", type(by_expert).__name__)
            rows = by_expert.rows
        check = self._device.check
        dtype = dtype_of_results(self._device, self.hidden, y, arrays, route, rows, out)
        if topk_weights is not None:
            check("topk_weights", topk_weights, arrays, FP32, (route.rows_received, self.topk))
        if out is None:
            out = arrays.empty((tokens, self.hidden), dtype, y)
        else:
            check("out", out, arrays, (dtype,), (tokens, self.hidden), written=True)
        biases = bias if isinstance(bias, tuple) else () if bias is None else (bias,)
        if len(biases) > 2:
            raise invalid("bias", "one array or two", f"{len(biases)}")
        for one in biases:
            check("bias", one, arrays, (dtype,), (tokens, self.hidden))
        if rank_order is not None:
            check("rank_order", rank_order, arrays, ("int32",), (tokens, self.world.size))
        home = None if topk_weights is None else arrays.empty((tokens, self.topk), "float32", y)
        self._native.combine(
            arrays.to_native(y),
            route._native,
            arrays.to_native(out),
            type=_tokenyard.DataType[dtype],
            weights=None if topk_weights is None else arrays.to_native(topk_weights),
            out_weights=None if home is None else arrays.to_native(home),
            rank_order=None if rank_order is None else arrays.to_native(rank_order),
            bias=arrays.to_native(biases[0]) if biases else None,
            second_bias=arrays.to_native(biases[1]) if len(biases) > 1 else None,
            by_expert=None if by_expert is None else by_expert.native,
            weighted=weighted,
            sms=size_of("sms", sms),
            local_sms=size_of("local_sms", local_sms),
            stream=self._device.stream(),
        )
        return out if home is None else Combined(out, home)

    def combine_buffer(self, received: Received[A] | Route, dtype: str = "bfloat16") -> Any:
        """Returns arena memory for a dispatch's results, which combine reads in place.

        Args:
            received: the dispatch's result, or its route.
            dtype: "bfloat16", "float16" or "float32".

        Returns:
            [rows received, hidden] of `dtype`, not initialised; a NumPy array or torch tensor like
            the x of the dispatch.
        """
        route = route_of(received)
        if dtype not in SUMMED:
            raise invalid("dtype", " or ".join(SUMMED), dtype)
        native = self._native.combine_buffer(
            route._native, type=_tokenyard.DataType[dtype], stream=self._device.stream()
        )
        return route._arrays.from_bytes(native, dtype)

    output_buffer = old_spellings.renamed("output_buffer", combine_buffer)

    def set_expert_map(self, expert_at: Sequence[int]) -> None:
        """Sets which expert each place holds, replicas included. Collective, between calls.

        topk_idx names experts, while received ids and counts refer to places. A choice whose expert
        has no place counts as -1; `Received.lost` and `metrics` count it.

        Args:
            expert_at: [places of all ranks] id of the expert in each place, ordered by rank; -1 for
                an empty place, so that ranks may hold unequal numbers. Tokens take the places of a
                replicated expert in turn. After ranks were lost, `spread_lost_experts` makes one.
                Empty: the map with which the exchange began.

        Raises:
            InvalidArgument: the map has other places or experts than the exchange, or ranks pass
                different maps.
        """
        last = self.experts - 1
        places = [size_of("expert_at", at, smallest=-1, largest=last) for at in expert_at]
        self._native.place(places)

    place = old_spellings.renamed("place", set_expert_map)

    @property
    def expert_map(self) -> list[int]:
        """Expert at each place of all ranks, ordered by rank; -1 for an empty place."""
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
        call needs them: load their weights there. `set_expert_map` calls it last, and so does the
        first dispatch after the ranks of the job have changed. None: nothing."""
        self._held.hook = hook

    @property
    def load(self) -> Load:
        """Rows per expert and time waited per rank, over all calls so far; does not wait."""
        return Load(*self._native.load())

    def metrics(self) -> dict[str, Any]:
        """Returns totals of this rank since the exchange was made; does not wait.

        Keys end in their unit, `_by_peer` is a list over ranks, `_by_expert` one over local
        experts; docs/metrics.md says what a high value means. `prometheus_text` writes them.

        - `exchange`, `rank`: "expert_parallel" and this rank.
        - `dispatch_calls`, `combine_calls`, `dispatched_tokens`: as this host made the calls.
        - `unplaced_choices`: choices of this rank's tokens whose experts had no place; counted on
          the device, replays included.
        - `uncounted_calls`: calls with `received_tokens_max`, whose counts no host reads; the rows
          and bytes lack theirs. The replays of a CUDA graph are in neither.
        - `received_rows_by_peer`, `received_bytes_by_peer`: by dispatch, from each rank.
        - `returned_rows_by_peer`, `returned_bytes_by_peer`: by combine, to each rank.
        - `received_choices_by_expert`: received rows that name each expert; counted on the device,
          replays included.
        - `wait_seconds_by_peer`: time that calls here waited for each rank, replays included.
        - `slowest_rank`: the other rank waited for the longest; None if no call ever waited.
        - between hosts, counted on the device: `link_sent_bytes_by_peer`,
          `link_arrived_bytes_by_peer`, `link_credit_wait_seconds_by_peer`,
          `link_row_wait_seconds_by_peer`, `send_wait_seconds`, `forward_wait_seconds`,
          `add_wait_seconds`, `slowest_host`, `slowest_rail`.
        - `missing`: totals that are not kept; none here.
        """
        mine: dict[str, Any] = {"exchange": "expert_parallel", "rank": self.world.rank}
        return mine | self._native.metrics() | {"missing": []}

    def trace_calls(self, on: bool = True) -> None:
        """Turns tracing of later calls on or off; see `last_trace`."""
        self._native.trace_calls(on)

    def last_trace(self) -> list[Moment]:
        """Returns the moments of the last traced call, block by block, once it has run."""
        return [Moment(*moment) for moment in self._native.last_trace()]

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes `last_trace` as a Perfetto (Chrome) trace with a track per block."""
        write_perfetto(path, self.world.rank, self.last_trace())

    def failed_ranks(self) -> list[FailedRank]:
        """Returns the ranks that this exchange has failed for, as far as can be seen now: none
        while it works, and one once it has failed, unless no rank but this one is to blame."""
        return self._native.failed_ranks()

    def check(self) -> None:
        """Raises the error of an enqueued call that has failed; does not wait."""
        self._native.check()

    def wait(self) -> None:
        """Waits for the work enqueued on the current stream, then raises like `check`."""
        self._native.wait(stream=self._device.stream())

    def close(self) -> None:
        """Closes the exchange. Received arrays stay valid until they are dropped."""
        self._native.close()
