"""Dispatch and combine as torch operators, with their gradients.

    dispatch        sends rows           its gradient is combine_with_weights
    dispatch_fp8    sends rows in FP8    likewise, in x's dtype: the cast passes gradients unchanged
    combine         returns sums         its gradient is dispatch_again

A row is a copy of its token, so a token's gradient is the sum of its rows' gradients: a combine.
Each row is an addend of its token's sum, so its gradient is that of the sum: a dispatch on the same
route. Gradients of weights travel beside these rows.

All ranks of an exchange must run the same operators in the same order, in the backward pass too. A
rank whose tensors require no gradient runs no backward pass; the others then time out with an error
that says so. Double backward is not supported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..errors import PeerLost, PeerTimeout, Unsupported
from ..expert_parallel import Combined
from . import routes

FP8_GROUP = 128
"""Channels per scale of FP8 rows."""
# A dispatch waits for counts on the host, so torch must not capture it in its own CUDA graphs.
NOT_CAPTURED = [torch.Tag.cudagraph_unsafe] if hasattr(torch.Tag, "cudagraph_unsafe") else []
operator = partial(torch.library.custom_op, mutates_args=(), tags=NOT_CAPTURED)


@operator("tokenyard::dispatch")
def dispatch(
    x: Tensor, topk_idx: Tensor, topk_weights: Tensor, exchange: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns received rows, their local expert ids and weights, and the ticket of their route."""
    used = routes.exchange_of(exchange)
    received = used.dispatch(x, topk_idx, topk_weights)
    ticket = routes.ticket_of(used, received.route)
    return received.x, received.topk_idx, received.topk_weights, ticket


@dispatch.register_fake
def _(
    x: Tensor, topk_idx: Tensor, topk_weights: Tensor, exchange: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = torch.library.get_ctx().new_dynamic_size()
    return (
        x.new_empty(rows, x.size(1)),
        topk_idx.new_empty(rows, topk_idx.size(1), dtype=torch.int32),
        topk_weights.new_empty(rows, topk_idx.size(1)),
        torch.empty(1, dtype=torch.int64, device="cpu"),
    )


@operator("tokenyard::dispatch_fp8")
def dispatch_fp8(
    x: Tensor, topk_idx: Tensor, topk_weights: Tensor, exchange: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns what `dispatch` does, with FP8 rows and their scales; the first result stands for the
    rows in the autograd graph: zeros of x's dtype that take the memory of one."""
    used = routes.exchange_of(exchange)
    received = used.dispatch(x, topk_idx, topk_weights, rows="fp8")
    ticket = routes.ticket_of(used, received.route)
    gradient = x.new_zeros(1, 1).expand(received.x.shape)
    scales = received.scales
    assert scales is not None
    return gradient, received.topk_idx, received.topk_weights, ticket, received.x, scales


@dispatch_fp8.register_fake
def _(
    x: Tensor, topk_idx: Tensor, topk_weights: Tensor, exchange: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows = torch.library.get_ctx().new_dynamic_size()
    return (
        x.new_empty(1, 1).expand(rows, x.size(1)),
        topk_idx.new_empty(rows, topk_idx.size(1), dtype=torch.int32),
        topk_weights.new_empty(rows, topk_idx.size(1)),
        torch.empty(1, dtype=torch.int64, device="cpu"),
        x.new_empty(rows, x.size(1), dtype=torch.float8_e4m3fn),
        x.new_empty(rows, x.size(1) // FP8_GROUP, dtype=torch.float32),
    )


@operator("tokenyard::dispatch_again")
def dispatch_again(x: Tensor, ticket: Tensor, rows: int) -> Tensor:
    """Dispatches other rows of the same tokens on the route of a ticket."""
    exchange, route = routes.route_of(ticket)
    with _backward_of("combine", ticket):
        return exchange.dispatch(x, route=route).x


@dispatch_again.register_fake
def _(x: Tensor, ticket: Tensor, rows: int) -> Tensor:
    return x.new_empty(rows, x.size(1))


@operator("tokenyard::combine")
def combine(y: Tensor, ticket: Tensor, tokens: int) -> Tensor:
    """Returns for each token the sum of its rows."""
    exchange, route = routes.route_of(ticket)
    return exchange.combine(y, route)


@combine.register_fake
def _(y: Tensor, ticket: Tensor, tokens: int) -> Tensor:
    return y.new_empty(tokens, y.size(1))


@operator("tokenyard::combine_with_weights")
def combine_with_weights(
    y: Tensor, weights: Tensor, ticket: Tensor, tokens: int
) -> tuple[Tensor, Tensor]:
    """Returns for each token the sums of its rows and of their weights."""
    exchange, route = routes.route_of(ticket)
    with _backward_of("dispatch", ticket):
        home: Combined[Tensor] = exchange.combine(y, route, weights)
    return home.x, home.topk_weights


@combine_with_weights.register_fake
def _(y: Tensor, weights: Tensor, ticket: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    return y.new_empty(tokens, y.size(1)), weights.new_empty(tokens, weights.size(1))


@contextmanager
def _backward_of(call: str, ticket: Tensor) -> Iterator[None]:
    """Adds to a peer error the call whose backward pass that rank did not run."""
    try:
        yield
    except (PeerLost, PeerTimeout) as error:
        number = routes.call_of(ticket)
        told = (
            f"{error}; this is the backward pass of {call} {number} of this exchange, which every "
            f"rank has to run: on rank {error.rank}, too, make x or topk_weights require a "
            "gradient and call backward()"
        )
        raise type(error)(told, **vars(error)) from error


def _keep_for_dispatch(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, ids, _, ticket = output
    ctx.save_for_backward(ids, ticket)
    ctx.tokens = inputs[0].size(0)


def _dispatch_backward(
    ctx: Any, grad_x: Tensor, grad_ids: None, grad_weights: Tensor, grad_ticket: None
) -> tuple[Tensor | None, ...]:
    ids, ticket = ctx.saved_tensors
    # Weights of experts on other ranks were set to 0 here, so they pass no gradient.
    grad_weights = grad_weights.masked_fill(ids < 0, 0)
    home = combine_with_weights(grad_x.contiguous(), grad_weights, ticket, ctx.tokens)
    return home[0], None, home[1], None


def _keep_for_dispatch_fp8(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _keep_for_dispatch(ctx, inputs, output[:4])
    ctx.mark_non_differentiable(*output[4:])


def _dispatch_fp8_backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
    return _dispatch_backward(ctx, *grads[:4])


def _keep_for_combine(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.rows = inputs[0].size(0)


def _combine_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (ticket,) = ctx.saved_tensors
    return dispatch_again(grad.contiguous(), ticket, ctx.rows), None, None


def _refuse_double_backward(ctx: Any, *gradients: Any) -> NoReturn:
    raise Unsupported(
        "double backward: the gradients of dispatch and combine have no gradients of their own; "
        "call backward() or grad() without create_graph=True",
        asked="double backward",
        why="the gradients of dispatch and combine have no gradients of their own",
    )


dispatch.register_autograd(_dispatch_backward, setup_context=_keep_for_dispatch)
dispatch_fp8.register_autograd(_dispatch_fp8_backward, setup_context=_keep_for_dispatch_fp8)
combine.register_autograd(_combine_backward, setup_context=_keep_for_combine)
dispatch_again.register_autograd(_refuse_double_backward)
combine_with_weights.register_autograd(_refuse_double_backward)
