"""Exchanges and routes as torch's operators can name them: by numbers.

An operator takes tensors and integers, and nothing else. So an exchange is known by its number, and
a route by a ticket: a tensor that holds the route's number. The route lives as long as its ticket's
memory, which autograd keeps for the backward pass.
"""

from __future__ import annotations

import itertools
import weakref
from typing import NamedTuple

import numpy as np
import torch

from ..expert_parallel import ExpertParallel, Route


class Kept(NamedTuple):
    """What a ticket stands for."""

    exchange: ExpertParallel
    route: Route
    call: int
    """Number of the dispatch that made the route, among those of its exchange, from 1."""


_numbers = itertools.count(1)
_exchanges: weakref.WeakValueDictionary[int, ExpertParallel] = weakref.WeakValueDictionary()
_calls: weakref.WeakKeyDictionary[ExpertParallel, int] = weakref.WeakKeyDictionary()
_routes: dict[int, Kept] = {}
"""Of this process: torch's operators have nowhere else to look them up."""


def number_of(exchange: ExpertParallel) -> int:
    """A new number for an exchange, which is not kept alive by it."""
    number = next(_numbers)
    _exchanges[number] = exchange
    return number


def exchange_of(number: int) -> ExpertParallel:
    return _exchanges[number]


def ticket_of(exchange: ExpertParallel, route: Route) -> torch.Tensor:
    """[1] int64 on the CPU, which keeps the route and its exchange alive."""
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
    """The number of the dispatch that made a ticket, the same on all ranks."""
    return _routes[int(ticket)].call
