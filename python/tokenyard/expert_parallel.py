"""Dispatch and combine: every token to the ranks that hold its experts, and the results home."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import _tokenyard

from .arrays import Arrays, arrays_of, check_array, current_stream
from .errors import invalid
from .sizes import size_of
from .world import World

A = TypeVar("A")
"""A NumPy array, or a torch tensor: results are of the kind that came in."""

BF16 = ("bfloat16",)
IDS = ("int32", "int64")
FP32 = ("float32",)


class Route:
    """Where each token of a dispatch went: what combine needs, and a repeated dispatch.

    Made by `ExpertParallel.dispatch`. It and the arrays received with it share the memory that they
    lie in, which is given back when the last of them has died.
    """

    def __init__(self, native: Any, arrays: Arrays) -> None:
        self._native = native
        self._arrays = arrays

    @property
    def tokens(self) -> int:
        """How many tokens this rank dispatched."""
        return self._native.tokens

    @property
    def rows_received(self) -> int:
        """How many rows this rank received."""
        return self._native.rows_received

    def __repr__(self) -> str:
        return f"Route(tokens={self.tokens}, rows_received={self.rows_received})"


@dataclass(frozen=True, eq=False)
class Received(Generic[A]):
    """What a rank received: rows in the order of their source rank, then their source token.

    The arrays are views into this rank's arena and keep it alive; nothing was copied.
    """

    x: A
    """[rows, hidden] bfloat16: the tokens."""
    topk_idx: A
    """[rows, topk] int32: experts as numbered on this rank, -1 where the expert is elsewhere."""
    topk_weights: A
    """[rows, topk] float32: their weights, 0 where the expert is elsewhere."""
    source_token: A
    """[rows] int32: the token's index on its source rank."""
    rows_from: list[int]
    """[ranks] rows received from each rank."""
    tokens_per_expert: list[int]
    """[experts of this rank] rows that name each expert."""
    route: Route
    """For `combine`, and for dispatching again."""


@dataclass(frozen=True, eq=False)
class Combined(Generic[A]):
    """What came home from a combine with weights."""

    x: A
    """[tokens, hidden] bfloat16: the sums."""
    topk_weights: A
    """[tokens, topk] float32: the weights that came beside the rows."""


class ExpertParallel:
    """Moves tokens between the ranks of a world and back. Collective: all ranks make it alike.

    Args:
        world: the ranks that take part.
        experts: experts in all, a multiple of the ranks; rank r holds those numbered from
            r * experts / ranks on.
        hidden: elements of a token, a multiple of 8.
        topk: experts a token, 1 to 32.
        tokens_max: most tokens a rank gives to one call; bounds the memory that a call reserves.
        sms: multiprocessors (on the host: blocks) that a call may use; 0 leaves it to Tokenyard.

    Raises:
        InvalidArgument: an argument cannot be right, or differs from another rank's.
        Unsupported: a rank is not within reach of loads and stores.

    >>> def layer(world):
    ...     exchange = ExpertParallel(world, experts=4, hidden=8, topk=1, tokens_max=16)
    ...     x = np.full((2, 8), world.rank, ml_dtypes.bfloat16)
    ...     to_next_rank = np.full((2, 1), (world.rank + 1) % 2 * 2, np.int64)
    ...     received = exchange.dispatch(x, to_next_rank, np.ones((2, 1), np.float32))
    ...     home = exchange.combine(received.x, received.route)
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
    ) -> None:
        self._native = _tokenyard.ExpertParallel.make(
            world._native,
            experts=size_of("experts", experts),
            hidden=size_of("hidden", hidden),
            topk=size_of("topk", topk),
            tokens_max=size_of("tokens_max", tokens_max),
            sms=size_of("sms", sms),
        )
        self.world = world
        self.experts, self.hidden, self.topk = experts, hidden, topk
        self.tokens_max = tokens_max
        self._device_index = world.device_index
        self._device = "cpu" if self._device_index is None else f"cuda:{self._device_index}"

    @property
    def sms(self) -> int:
        """How many multiprocessors (blocks, on the host) a call uses."""
        return self._native.sms

    @overload
    def dispatch(self, x: A, topk_idx: A, topk_weights: A) -> Received[A]: ...
    @overload
    def dispatch(self, x: A, *, route: Route) -> Received[A]: ...

    def dispatch(
        self,
        x: A,
        topk_idx: A | None = None,
        topk_weights: A | None = None,
        *,
        route: Route | None = None,
    ) -> Received[A]:
        """Sends every token to the ranks that hold its experts. Collective.

        Waits for the counts. On a GPU the rows may still be on their way: work enqueued on torch's
        current stream finds them there. The inputs must not change until then.

        Args:
            x: [tokens, hidden] bfloat16, contiguous, on this rank's device.
            topk_idx: [tokens, topk] int32 or int64: the experts of each token, -1 for none.
            topk_weights: [tokens, topk] float32.
            route: instead of experts and weights: those of the dispatch that made this route, with
                as many tokens as then. Nothing is counted anew.

        Raises:
            InvalidArgument: a dtype, shape, device or layout, before anything was launched; an
                expert that does not exist or stands twice in a row, or calls that differ between
                ranks: on all ranks alike, before any row moved.
            PeerTimeout, PeerLost: a rank did not come or is gone. This object has then failed;
                `World.rebuild` goes on without that rank.
        """
        arrays = arrays_of("x", x)
        if route is not None:
            if topk_idx is not None or topk_weights is not None:
                raise invalid("route", "no topk_idx and topk_weights beside it", "both")
            _check_route(route)
            self._check("x", x, arrays, BF16, (route.tokens, self.hidden))
            native = self._native.dispatch_again(
                arrays.to_native(x), route._native, stream=self._stream()
            )
        else:
            self._check("x", x, arrays, BF16, ("tokens", self.hidden))
            tokens = arrays.shape(x)[0]
            self._check("topk_idx", topk_idx, arrays, IDS, (tokens, self.topk))
            self._check("topk_weights", topk_weights, arrays, FP32, (tokens, self.topk))
            native = self._native.dispatch(
                arrays.to_native(x),
                arrays.to_native(topk_idx),
                arrays.to_native(topk_weights),
                stream=self._stream(),
            )
        return Received(
            x=arrays.from_native(native.x, "bfloat16"),
            topk_idx=arrays.from_native(native.topk_idx, "int32"),
            topk_weights=arrays.from_native(native.topk_weights, "float32"),
            source_token=arrays.from_native(native.source_token, "int32"),
            rows_from=native.rows_from,
            tokens_per_expert=native.tokens_per_expert,
            route=Route(native.route, arrays),
        )

    @overload
    def combine(self, y: A, route: Route, weights: None = None, out: A | None = None) -> A: ...
    @overload
    def combine(self, y: A, route: Route, weights: A, out: A | None = None) -> Combined[A]: ...

    def combine(
        self, y: A, route: Route, weights: A | None = None, out: A | None = None
    ) -> A | Combined[A]:
        """Brings results home: for every token the sum over the ranks it went to. Collective.

        Sums are taken in float32, in the order of the ranks, and rounded once. A token that went
        nowhere gets zeros. Row weights are yours to apply before.

        Args:
            y: [rows received, hidden] bfloat16: row i is the result for received row i. Read in
                place if it lies in `output_buffer`, otherwise copied there first.
            route: of the dispatch that the rows came with.
            weights: [rows received, topk] float32, to be brought home beside the rows.
            out: [tokens, hidden] bfloat16 to write to; made anew if None.

        Returns:
            [tokens, hidden] bfloat16; with `weights`, a `Combined` that holds it and the weights.

        Raises:
            InvalidArgument, PeerTimeout, PeerLost: as `dispatch`.
        """
        _check_route(route)
        arrays = arrays_of("y", y)
        rows, tokens = route.rows_received, route.tokens
        self._check("y", y, arrays, BF16, (rows, self.hidden))
        if weights is not None:
            self._check("weights", weights, arrays, FP32, (rows, self.topk))
        if out is None:
            out = arrays.empty((tokens, self.hidden), "bfloat16", y)
        self._check("out", out, arrays, BF16, (tokens, self.hidden))
        home = None if weights is None else arrays.empty((tokens, self.topk), "float32", y)
        self._native.combine(
            arrays.to_native(y),
            route._native,
            arrays.to_native(out),
            None if weights is None else arrays.to_native(weights),
            None if home is None else arrays.to_native(home),
            stream=self._stream(),
        )
        return out if home is None else Combined(out, home)

    def output_buffer(self, route: Route) -> Any:
        """Arena memory for the results of a route, which combine then reads in place.

        Returns:
            [rows received, hidden] bfloat16, not initialised, of the kind of array that was
            dispatched.
        """
        _check_route(route)
        native = self._native.output_buffer(route._native, stream=self._stream())
        return route._arrays.from_native(native, "bfloat16")

    def check(self) -> None:
        """Raises the error of an enqueued call that has failed by now; does not wait."""
        self._native.check()

    def wait(self) -> None:
        """Waits until the work enqueued on the current stream has ended, then as `check`."""
        self._native.wait(stream=self._stream())

    def close(self) -> None:
        """Lets go of the exchange. Arrays received stay valid until they die."""
        self._native.close()

    def _stream(self) -> int:
        return current_stream(self._device_index)

    def _check(
        self, name: str, array: Any, arrays: Arrays, dtypes: tuple[str, ...], shape: tuple
    ) -> None:
        check_array(name, array, arrays=arrays, dtypes=dtypes, shape=shape, device=self._device)


def _check_route(route: Any) -> None:
    if not isinstance(route, Route):
        raise invalid("route", "a Route from a dispatch", type(route).__name__)
