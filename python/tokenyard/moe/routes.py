"""Numbers for exchanges and routes, since torch's operators take only tensors and integers.

An exchange has a number, and a route a ticket: a tensor that holds the route's number. The route
lives as long as its ticket's memory, which autograd keeps for the backward pass.
"""

from __future__ import annotations

import itertools
import weakref
from typing import NamedTuple

import numpy as np
import torch

from ..expert_parallel import ExpertParallel, Route


class Kept(NamedTuple):
    """The exchange and route of a ticket."""

    exchange: ExpertParallel
    route: Route
    call: int
    """Number of the dispatch that made the route within its exchange, from 1."""


_numbers = itertools.count(1)
_exchanges: weakref.WeakValueDictionary[int, ExpertParallel] = weakref.WeakValueDictionary()
_calls: weakref.WeakKeyDictionary[ExpertParallel, int] = weakref.WeakKeyDictionary()
_routes: dict[int, Kept] = {}
"""Global, since torch's operators have no other state to look them up in."""


def number_of(exchange: ExpertParallel) -> int:
    """Returns a new number for an exchange, without keeping the exchange alive."""
    number = next(_numbers)
    _exchanges[number] = exchange
    return number


def exchange_of(number: int) -> ExpertParallel:
    return _exchanges[number]


def ticket_of(exchange: ExpertParallel, route: Route) -> torch.Tensor:
    """Returns a tensor [1] int64 on the CPU that keeps the route and its exchange alive."""
    number = next(_numbers)
    _calls[exchange] = call = _calls.get(exchange, 0) + 1
    _routes[number] = Kept(exchange, route, call)
    memory = np.array([number])
    weakref.finalize(memory, _routes.pop, number)
    return torch.from_numpy(memory)


def route_of(ticket: torch.Tensor) -> tuple[ExpertParallel, Route]:
    kept = _routes[int(ticket)]
    return kept.exchange, kept.route


def call_of(ticket: torch.Tensor) -> int:
    """Returns the number of the dispatch that made a ticket, the same on all ranks."""
    return _routes[int(ticket)].call
