"""Dispatch and combine for throughput: any number of tokens, rows in the order of their sources."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, overload

import _tokenyard
from _tokenyard import FailedRank

from ..arrays import A, arrays_of
from ..errors import invalid
from ..sizes import size_of
from ..world.world import World, native_of
from . import old_spellings
from .arguments import choices_of_dispatch, dtype_of_results, route_of, rows_of_dispatch
from .call_device import CallDevice
from .received import Combined, DispatchMemory, ExpertRows, Load, Moment, Received, Route
from .row_formats import FP32, MOVED, SUMMED, form_of, scale_order
from .tracing import write_perfetto


class ExpertParallel:
    """Moves tokens between the ranks of a world and back. Collective: all ranks make it alike.

    Args:
        world: the ranks that take part.
        experts: experts in all. Rank after rank holds experts // ranks of them, and the first
            experts % ranks ranks one more, unless `set_expert_map` says otherwise; see
            `first_expert`.
        hidden: elements of a token, a multiple of 8.
        topk: experts a token, 1 to 256.
        tokens_max: most tokens a rank gives to one call; bounds the memory that a call reserves.
        sms: multiprocessors (on the host: blocks) that a call may use; 0: chosen, see `sms`.
        sms_max: most that a single call may ask for; 0: as many as `sms`.

    Raises:
        InvalidArgument: an argument cannot be right, or differs from another rank's.
        Unsupported: a rank is not within reach of loads and stores.

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
    ) -> None:
        shape = dict(experts=experts, hidden=hidden, topk=topk, tokens_max=tokens_max)
        native = _tokenyard.ExpertParallel.make(
            native_of(world),
            **{name: size_of(name, size) for name, size in shape.items()},
            sms=size_of("sms", sms),
            sms_max=size_of("sms_max", sms_max),
        )
        self.world = world
        self.experts, self.hidden, self.topk = experts, hidden, topk
        self.tokens_max = tokens_max
        self._native = native
        self._device = CallDevice(world.device_index)

    @property
    def local_experts(self) -> int:
        """Number of this rank's experts; of its places, once `set_expert_map` was called."""
        return self._native.local_experts

    @property
    def first_expert(self) -> int:
        """Number of this rank's first expert, or place."""
        return self._native.first_expert

    @property
    def sms(self) -> int:
        """How many multiprocessors (blocks, on the host) a call uses."""
        return self._native.sms

    @property
    def sms_reason(self) -> str:
        """Why it is that many, in a sentence."""
        return self._native.sms_reason

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
    ) -> DispatchMemory:
        """Returns what an exchange of these options and one of its dispatches take on each rank.
        Nothing is made.

        Args:
            experts, hidden, topk, tokens_max, sms, sms_max: of the exchange.
            ranks: ranks of its world.
            tokens: tokens that a rank dispatches; None: tokens_max.
            rows_received: rows that come to it; None: as many as may come.
            dtype: of the rows.
            row_bytes: bytes per row of uint8; 0 for other dtypes.
            scale_words: 4-byte words of scales per row.

        Raises:
            InvalidArgument: options that no exchange can have, or sizes beyond them.
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
                ranks=number,
                tokens=most if tokens is None else size_of("tokens", tokens),
                rows_received=size_of("rows_received", rows),
                type=_tokenyard.DataType[dtype],
                row_bytes=size_of("row_bytes", row_bytes),
                scale_words=size_of("scale_words", scale_words),
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
        """Sends every token to the ranks that hold its experts. Collective.

        Waits for the counts. On a GPU the rows may still be on their way: work enqueued on torch's
        current stream finds them there. The inputs must not change until then. With
        `received_tokens_max` it waits for nothing, and a CUDA graph may capture it.

        Args:
            x: [tokens, hidden] bfloat16, float16, float32 or float8_e4m3fn, or [tokens, bytes]
                uint8 of anything, contiguous, on this rank's device. Nothing is ever converted.
            topk_idx: [tokens, topk] int32 or int64: the experts of each token, -1 for none.
            topk_weights: [tokens, topk] float32; None: every choice weighs 1.
            route: instead of experts and weights: those of the dispatch that made this route, with
                as many tokens as then. Nothing is counted anew; rows may be of another dtype.
            rows: what is delivered of a bfloat16 x, which is cast before it travels: "bf16"; "fp8",
                with float32 scales of a group's largest magnitude / 448; "fp8_ue8m0", with scales
                rounded up to powers of two, the exponents of four groups packed into an int32.
                None: x as it is, of whatever dtype.
            scales: [tokens, words] float32 or int32, or [tokens, bytes] uint8 (multiples of 4),
                which travel beside the rows, whatever they mean.
            scales_by_columns: receive them (float32 or int32) by columns, each 16 bytes aligned,
                as grouped GEMMs read them by TMA.
            scale_channels: channels per scale of FP8 rows that are cast here: 16, 32, ... 512, a
                divisor of hidden.
            received_tokens_max: not 0: the results have places for this many rows. Places that no
                row comes to have -1 in topk_idx and source_token. More rows than that, on any
                rank, are an InvalidArgument on all, raised by `check`, `wait` or a later call; the
                object has failed then.
            watcher: a torch stream whose kernels may start on rows as they arrive: the result then
                has `sources_ready` and `experts_ready`. The stream is made to come after these have
                been cleared, and not after the call. (On the host, where a call has ended when it
                returns, anything but None.)
            sms: multiprocessors for this call, at most sms_max; 0: as the object has.

        Raises:
            InvalidArgument: a dtype, shape, device or layout, before anything was launched; an
                expert that does not exist or stands twice in a row, `rows` or scales that differ
                from rank 0's, or other calls: on all ranks alike, before any row moved.
            PeerTimeout, PeerLost: a rank did not come or is gone. This object has then failed;
                `World.rebuild` goes on without that rank.
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
        """Dispatches, and groups rows by expert as they come: what `group_by_expert` makes of what
        `dispatch` brings, sooner. Collective.

        Args:
            alignment, clear_padding: as `group_by_expert`.
            rows_max: places for rows, padding included. 0: for all that may come, which the arena
                must then have room for until the counts are known.
            x, topk_idx, topk_weights, rows, scales, scales_by_columns, scale_channels,
            received_tokens_max, sms: as `dispatch`.

        Returns:
            What was received, without its rows and scales, and these, grouped.

        Raises:
            InvalidArgument: more rows than places, on this rank (where nobody waits for the counts:
                later, and the object has failed); and as `dispatch`.
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
        """Groups what was received by expert. Not collective; waits for nothing.

        Args:
            received: what a dispatch brought; its scales must lie by rows.
            alignment: every expert's first row is a multiple of it; what is left is padding.
            rows_max: places in the result, padding included; needed after a dispatch with
                `received_tokens_max`, which knows no counts on the host.
            clear_padding: whether rows of padding are zeros; else they hold anything, which saves
                their stores.
            scales_by_columns: as `dispatch`.
            sms: multiprocessors, any number, since no other rank takes part; 0: as the object has.

        Raises:
            InvalidArgument: too few places (where the host does not know the counts: later), and
                as `dispatch`.
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
        *,
        out: A | None = None,
        bias: A | tuple[A, A] | None = None,
        rank_order: A | None = None,
        by_expert: ExpertRows[A] | None = None,
        weighted: bool = False,
        sms: int = 0,
        local_sms: int = 0,
    ) -> A: ...
    @overload
    def combine(
        self,
        y: A,
        received: Received[A] | Route,
        topk_weights: A,
        *,
        out: A | None = None,
        bias: A | tuple[A, A] | None = None,
        rank_order: A | None = None,
        by_expert: ExpertRows[A] | None = None,
        weighted: bool = False,
        sms: int = 0,
        local_sms: int = 0,
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
        """Brings results home: for every token the sum over the ranks it went to. Collective.

        Sums are taken in float32, of the biases first, then in the order of the ranks, and rounded
        once to y's dtype. A token that went nowhere gets zeros and the biases. Weights are yours to
        apply to rows before, unless y lies by expert and is to be `weighted`.

        Args:
            y: [rows received, hidden] bfloat16, float16 or float32: row i is the result for
                received row i. If the rows that came are of one of these dtypes, y has it too,
                unless `out` is given. Read in place if it lies in `combine_buffer`, else copied
                there first.
            received: what the dispatch returned, or its route.
            topk_weights: [rows received, topk] float32, to be brought home beside the rows.
            out: [tokens, hidden] of y's dtype to write to, apart from y; made anew if None.
            bias: [tokens, hidden] of y's dtype, or two of them: the sums begin with them.
            rank_order: [tokens, ranks] int32: the order in which a token's ranks are added, each of
                them once; None: as they are numbered.
            by_expert: y lies as these rows do, [rows, hidden]. A token's results on a rank are then
                first added up there, in the order of its choices, in float32, and rounded to y's
                dtype; these sums travel, and are added up as above.
            weighted: each result times its routing weight, in that first sum.
            sms: as `dispatch`.
            local_sms: multiprocessors for that first sum, any number, before anything goes
                home; 0: some of `sms` do so while the others pull.

        Returns:
            [tokens, hidden] of y's dtype; with `topk_weights`, a `Combined` that holds it and
            them.

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
        """Returns arena memory for the results of a dispatch, which combine reads in place.

        Args:
            received: what the dispatch returned, or its route.

        Returns:
            [rows received, hidden] of `dtype` (bfloat16, float16, float32), not initialised, of the
            kind of array that was dispatched.
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
        """Says where experts live, as load balancers give it. Collective, between calls.

        From now on topk_idx names experts; what is received and counted goes by places.

        Args:
            expert_at: [experts] the expert that each place holds, rank after rank; -1 for a place
                that holds none, so ranks may hold unequal numbers. An expert may have several
                places: tokens take them in turn. Empty: place and expert are one again.

        Raises:
            InvalidArgument: an expert without a place, or ranks that say different things.
        """
        last = self.experts - 1
        places = [size_of("expert_at", at, smallest=-1, largest=last) for at in expert_at]
        self._native.place(places)

    place = old_spellings.renamed("place", set_expert_map)

    @property
    def load(self) -> Load:
        """Rows per expert and time waited per rank, over all calls; does not wait for any."""
        return Load(*self._native.load())

    def trace_calls(self, on: bool = True) -> None:
        """Has calls note when each block reaches each moment, or no longer."""
        self._native.trace_calls(on)

    def last_trace(self) -> list[Moment]:
        """Returns the last call that was traced, block by block, once its work has ended."""
        return [Moment(*moment) for moment in self._native.last_trace()]

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes `last_trace` as a Perfetto (Chrome) trace: a line per block, and on it what the
        block was doing until it reached each moment."""
        write_perfetto(path, self.world.rank, self.last_trace())

    def failed_ranks(self) -> list[FailedRank]:
        """Returns the ranks that this exchange has failed for, as far as can be seen now: none
        while it works, and one once it has failed, unless no rank but this one is to blame."""
        return self._native.failed_ranks()

    def check(self) -> None:
        """Raises the error of an enqueued call that has failed by now; does not wait."""
        self._native.check()

    def wait(self) -> None:
        """Waits until the work enqueued on the current stream has ended, then as `check`."""
        self._native.wait(stream=self._device.stream())

    def close(self) -> None:
        """Lets go of the exchange. Arrays received stay valid until they die."""
        self._native.close()
