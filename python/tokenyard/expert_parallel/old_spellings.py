"""Old spellings of calls: they work for one version, with a DeprecationWarning.

Each decorator translates calls in the old spelling to the method's new one, and passes all other
calls through unchanged.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import invalid

__all__ = [
    "renamed",
    "static_memory",
    "takes_as_fp8",
    "takes_route_and_weights",
    "takes_weights_first",
    "warn",
]

F = TypeVar("F", bound=Callable[..., Any])

_ROWS_OF_AS_FP8: dict[Hashable, str | None] = {
    False: None,
    "": None,
    True: "fp8",
    "float32": "fp8",
    "ue8m0": "fp8_ue8m0",
}


def warn(old: str, new: str) -> None:
    """Warns the caller of a method in an old spelling."""
    # 1 is this function, 2 the decorator's, 3 the caller's line.
    warnings.warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel=3)


def takes_as_fp8(method: F) -> F:
    """Translates `as_fp8=` to `rows=`."""

    @functools.wraps(method)
    def spelled(self: Any, *args: Any, **named: Any) -> Any:
        if "as_fp8" in named:
            as_fp8 = named.pop("as_fp8")
            if not isinstance(as_fp8, Hashable) or as_fp8 not in _ROWS_OF_AS_FP8:
                raise invalid("as_fp8", 'True, "float32", "ue8m0" or False', repr(as_fp8))
            if "rows" in named:
                raise invalid("rows", "no as_fp8 beside it", "both")
            named["rows"] = _ROWS_OF_AS_FP8[as_fp8]
            warn(f"as_fp8={as_fp8!r}", f"rows={named['rows']!r}")
        return method(self, *args, **named)

    return spelled  # type: ignore[return-value]


def takes_route_and_weights(method: F) -> F:
    """Translates combine(y, route=, weights=) and a positional `out`."""

    @functools.wraps(method)
    def spelled(self: Any, *args: Any, **named: Any) -> Any:
        if "route" in named:
            named["received"] = named.pop("route")
            warn("combine(y, route=...)", "combine(y, received)")
        if "weights" in named:
            named["topk_weights"] = named.pop("weights")
            warn("combine(..., weights=...)", "combine(..., topk_weights=...)")
        if len(args) == 4:
            *args, named["out"] = args  # type: ignore[assignment]
            warn("combine(y, received, topk_weights, out)", "out=")
        return method(self, *args, **named)

    return spelled  # type: ignore[return-value]


def takes_weights_first(kind: type) -> Callable[[F], F]:
    """Translates combine(y, topk_weights, received), where `received` is of this type."""

    def decorator(method: F) -> F:
        @functools.wraps(method)
        def spelled(self: Any, *args: Any, **named: Any) -> Any:
            if len(args) > 1:
                y, topk_weights, *rest = args
                received = rest[0] if rest else named.get("received")
                if isinstance(received, kind):
                    warn("combine(y, topk_weights, received)", "combine(y, received, topk_weights)")
                    named.pop("received", None)
                    args = (y, received, topk_weights, *rest[1:])
            return method(self, *args, **named)

        return spelled  # type: ignore[return-value]

    return decorator


def renamed(old: str, method: F) -> F:
    """Returns a method that warns that its name is now `method`'s, and calls that."""
    new = method.__name__

    def spelled(self: Any, *args: Any, **named: Any) -> Any:
        warn(old, new)
        return method(self, *args, **named)

    spelled.__name__ = old
    spelled.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.{old}"
    spelled.__doc__ = f"Deprecated: use `{new}`."
    return spelled  # type: ignore[return-value]


if TYPE_CHECKING:
    from builtins import staticmethod as static_memory
else:

    class static_memory(staticmethod):  # noqa: N801  It is used as a decorator.
        """A static `memory`, which an exchange answers as before too: of a call of its own, with a
        dictionary."""

        def __get__(self, exchange: Any, owner: type | None = None) -> Callable[..., Any]:
            memory = super().__get__(exchange, owner)
            if exchange is None:
                return memory

            @functools.wraps(memory)
            def spelled(*args: Any, **named: Any) -> Any:
                if args or "experts" in named:
                    return memory(*args, **named)
                warn(
                    "exchange.memory(tokens=..., rows_received=...)",
                    "ExpertParallel.memory(experts=..., hidden=..., topk=..., tokens_max=...,"
                    " ranks=..., tokens=..., rows_received=...)",
                )
                of_call = memory(
                    experts=exchange.experts,
                    hidden=exchange.hidden,
                    topk=exchange.topk,
                    tokens_max=exchange.tokens_max,
                    ranks=exchange.world.size,
                    sms=exchange.sms,
                    **named,
                )
                keys = ("object", "peak", "kept", "kept_by_route")
                # Later values have a new spelling only.
                return dict(zip(keys, of_call[: len(keys)], strict=True))

            return spelled
