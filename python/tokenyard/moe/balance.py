"""From measured loads to an expert map: how many places each expert has, and on which ranks.

    replicate   give the next free place to the expert whose places are the most loaded
    pack        put places on ranks, the most loaded first, each on the least loaded rank
    improve     exchange two places, or give a place to another expert or to none, while that
                lowers the greatest load of a rank

An expert's places share its load evenly, so one more may load its rank beyond what it takes from
others. So this is done with all places, and with some left empty at first. Of the ends within SLACK
of the best, the one with most places counts: more replicas follow loads that change.

With several hosts, experts are first divided among the hosts, and each host is balanced alone, so
that all replicas of an expert are on one host.

Invariant: a rank never has two places of one expert, which would take memory and share nothing.
Results depend on the arguments alone, so that ranks with the same loads make the same map.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import invalid
from ..expert_parallel import ExpertParallel
from ..sizes import size_of

EMPTY = -1
"""The expert of a place that holds none."""
PARTS = 4
"""Parts of the spare places that are left empty at first: none, one, ... all."""
SLACK = 0.01
"""Relative difference of the greatest load that more replicas are worth."""
ROUNDING = 1e-9
"""Relative difference of loads that counts as none."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ExpertMap:
    """Experts at places, and the loads to expect of it."""

    expert_at: list[int]
    """[places] expert at each place, rank after rank, or -1: for `ExpertParallel.set_expert_map`.
    """
    replicas: list[int]
    """[experts] number of places of each expert."""
    rank_loads: list[float]
    """[ranks] load of each rank, if an expert's places share its load evenly."""

    @property
    def imbalance(self) -> float:
        """The greatest load of a rank over the mean: 1.0 is perfect; 1.0, too, without load."""
        mean = sum(self.rank_loads) / len(self.rank_loads)
        return max(self.rank_loads) / mean if mean > 0 else 1.0


def balance_experts(
    loads: ArrayLike,
    *,
    places: int,
    ranks: int,
    hosts: int = 1,
    groups: int | None = None,
    before: Sequence[int] | None = None,
) -> ExpertMap:
    """Returns a map that spreads measured loads evenly over the ranks.

    Every expert has a place, and its places are on different ranks. For p places it takes O(p * p)
    steps to begin with, and for each improvement, of which there are at most 4 * p.

    Args:
        loads: [experts] load of each expert, such as `measured_loads` returns; 0 or more.
        places: places over all ranks, the `experts` of the exchange: at least one per expert. The
            first places % ranks ranks have one more. Places remain empty if every expert is on
            every rank.
        ranks: number of ranks.
        hosts: number of hosts, each with ranks // hosts consecutive ranks.
        groups: number of groups of consecutive experts that stay together on a host, as routers
            limited to some groups want it; None: as many as there are experts.
        before: the map in use; experts that stay on their rank keep their places, so that their
            weights need not move.

    Raises:
        InvalidArgument: sizes do not fit, or a load is negative or not finite.

    >>> balance_experts([6, 1, 1, 2], places=6, ranks=2)
    ExpertMap(expert_at=[0, 1, 3, 0, 2, 3], replicas=[2, 1, 1, 2], rank_loads=[5.0, 5.0])
    """
    load = _checked(loads)
    experts = len(load)
    capacity = _capacities(size_of("places", places), size_of("ranks", ranks, smallest=1))
    per_host = _per_host(experts, ranks, hosts, experts if groups is None else groups)
    group_size = experts // per_host.groups
    on_hosts = [np.arange(experts)]
    if hosts > 1:
        of_groups = load.reshape(per_host.groups, group_size).sum(1)
        alone = _pack(of_groups, np.ones(per_host.groups, np.int64), per_host.capacity)
        on_hosts = [
            np.concatenate([np.arange(group_size) + group * group_size for group in each])
            for each in alone.on_ranks()
        ]
    kept: list[list[int]] = []
    replicas = np.zeros(experts, np.int64)
    for host, here in enumerate(on_hosts):
        of_host = capacity[host * per_host.ranks : (host + 1) * per_host.ranks]
        if of_host.sum() < len(here):
            raise invalid(
                "places", f"at least {len(here)} on host {host}, one per expert", f"{of_host.sum()}"
            )
        packed = _balanced(load[here], of_host)
        kept += [sorted(here[expert] for expert in each) for each in packed.on_ranks()]
        replicas[here] = packed.replicas
    share = load / replicas
    return ExpertMap(
        expert_at=_at_places(kept, capacity, before),
        replicas=[int(count) for count in replicas],
        rank_loads=[float(sum(share[expert] for expert in each)) for each in kept],
    )


def measured_loads(exchange: ExpertParallel, expert_at: Sequence[int] | None = None) -> list[int]:
    """Returns the rows that each expert has received so far, over all ranks. Collective.

    They count from when the exchange was made, by place. For the load since a map was set, call
    this right after setting it and again now, both with that map, and subtract.

    Args:
        expert_at: the map in use; None if there is none.

    Returns:
        [experts]; [places], if there is no map.

    >>> def layer(world):
    ...     exchange = ExpertParallel(world, experts=4, hidden=8, topk=1, tokens_max=4)
    ...     x = np.zeros((3, 8), np.float32)
    ...     exchange.dispatch(x, np.array([[0], [0], [3]]))
    ...     return measured_loads(exchange)
    >>> tokenyard.launch(layer, ranks=2)
    [[4, 0, 0, 2], [4, 0, 0, 2]]
    """
    mine = np.array(exchange.load.tokens_per_expert, np.int64)
    told = exchange.world.all_gather(mine.tobytes(), "measured loads")
    at_places = np.concatenate([np.frombuffer(each, np.int64) for each in told])
    if expert_at is None:
        return [int(rows) for rows in at_places]
    experts = np.asarray(expert_at, np.int64)
    if experts.shape != at_places.shape:
        raise invalid("expert_at", f"{len(at_places)} places", f"{len(experts)}")
    held = experts >= 0
    loads = np.bincount(experts[held], at_places[held], minlength=int(experts.max(initial=-1)) + 1)
    return [int(rows) for rows in loads]


@dataclass(frozen=True)
class _Hosts:
    """How groups of experts are divided among hosts."""

    groups: int
    ranks: int
    """Ranks per host."""
    capacity: Ints
    """[hosts] groups of each host."""


def _checked(loads: ArrayLike) -> Floats:
    load = np.asarray(loads, np.float64)
    if load.ndim != 1 or len(load) == 0:
        raise invalid("loads", "one number per expert", f"shape {list(load.shape)}")
    wrong = np.flatnonzero(~np.isfinite(load) | (load < 0))
    if len(wrong):
        raise invalid(f"loads[{wrong[0]}]", "0 or more, and finite", f"{load[wrong[0]]}")
    return load


def _capacities(places: int, ranks: int) -> Ints:
    each, more = divmod(places, ranks)
    return np.full(ranks, each, np.int64) + (np.arange(ranks) < more)


def _per_host(experts: int, ranks: int, hosts: int, groups: int) -> _Hosts:
    if not 1 <= hosts <= ranks or ranks % hosts:
        raise invalid("hosts", f"a divisor of the {ranks} ranks", str(hosts))
    if not 1 <= groups <= experts or experts % groups:
        raise invalid("groups", f"a divisor of the {experts} experts", str(groups))
    if groups < hosts:
        raise invalid("groups", f"at least one per host, {hosts}", str(groups))
    return _Hosts(groups, ranks // hosts, _capacities(groups, hosts))


def _balanced(load: Floats, capacity: Ints) -> _Packing:
    """Returns the packing of experts and their replicas over the ranks of a host."""
    if capacity.sum() < len(load):
        raise invalid("places", f"at least {len(load)}, one per expert", f"{capacity.sum()}")
    ends = []
    spare = int(capacity.sum()) - len(load)
    for places in {len(load) + spare * part // PARTS: None for part in range(PARTS, -1, -1)}:
        packing = _pack(load, _replicas(load, places, len(capacity)), capacity)
        for _ in range(4 * int(capacity.sum())):
            if not packing.exchange_places() and not packing.change_expert():
                break
        ends.append(packing)
    lowest = min(packing.rank_loads.max() for packing in ends)
    good = [packing for packing in ends if packing.rank_loads.max() <= lowest * (1 + SLACK)]
    return max(good, key=lambda packing: int(packing.replicas.sum()))


def _replicas(load: Floats, places: int, ranks: int) -> Ints:
    """Returns [experts] number of places; no other choice has a lower greatest load of a place."""
    count = np.ones(len(load), np.int64)
    heap = [(-own, 1, expert) for expert, own in enumerate(load)]
    heapq.heapify(heap)
    for _ in range(places - len(load)):
        while heap and heap[0][1] == ranks:
            heapq.heappop(heap)
        if not heap:
            break  # Every expert is on every rank: the other places remain empty.
        _, had, expert = heapq.heappop(heap)
        count[expert] = had + 1
        heapq.heappush(heap, (-load[expert] / (had + 1), had + 1, expert))
    return count


class _Packing:
    """Experts at places of ranks, while they are moved about."""

    def __init__(self, load: Floats, replicas: Ints, capacity: Ints) -> None:
        self.load, self.replicas = load, replicas.copy()
        self.rank_of = np.repeat(np.arange(len(capacity)), capacity)
        """[places]."""
        self.expert_at = np.full(len(self.rank_of), EMPTY, np.int64)
        # The last column stands for empty places, whose load is 0 and which no rank "holds".
        self.holds = np.zeros((len(capacity), len(load) + 1), bool)
        self.rank_loads = np.zeros(len(capacity))

    @property
    def share(self) -> Floats:
        """[experts + 1] load of a place of each expert; 0 at the end, for an empty place."""
        return np.append(self.load / self.replicas, 0.0)

    def on_ranks(self) -> list[list[int]]:
        """Returns each rank's experts."""
        return [
            [int(expert) for expert in self.expert_at[self.rank_of == rank] if expert != EMPTY]
            for rank in range(len(self.rank_loads))
        ]

    def put(self, place: int, expert: int) -> None:
        """Puts an expert at a place, empty or not."""
        rank, share = self.rank_of[place], self.share
        old = self.expert_at[place]
        self.holds[rank, old], self.holds[rank, expert] = False, expert != EMPTY
        self.rank_loads[rank] += share[expert] - share[old]
        self.expert_at[place] = expert

    def free(self, rank: int) -> int | None:
        """Returns the rank's first empty place."""
        empty = np.flatnonzero((self.rank_of == rank) & (self.expert_at == EMPTY))
        return int(empty[0]) if len(empty) else None

    def exchange_places(self) -> bool:
        """Exchanges a place of the most loaded rank for another's, if that lowers the load."""
        most = int(self.rank_loads.argmax())
        here = np.flatnonzero((self.rank_of == most) & (self.expert_at != EMPTY))
        there = np.flatnonzero(self.rank_of != most)
        if not len(here) or not len(there):
            return False
        share, ours, theirs = self.share, self.expert_at[here], self.expert_at[there]
        other = self.rank_of[there]
        moved = share[ours][:, None] - share[theirs][None]
        after = np.maximum(self.rank_loads[most] - moved, self.rank_loads[other] + moved)
        after[:, self.holds[most, theirs]] = np.inf
        after[self.holds[other][:, ours].T] = np.inf
        best = int(after.argmin())
        if not self._lower(after.flat[best]):
            return False
        one, two = here[best // len(there)], there[best % len(there)]
        mine, its = int(self.expert_at[one]), int(self.expert_at[two])
        for place, expert in ((one, EMPTY), (two, mine), (one, its)):
            self.put(place, expert)
        return True

    def change_expert(self) -> bool:
        """Gives a place to another expert, or to none, likewise; each expert keeps one place.

        The place is on the most loaded rank, or the expert is.
        """
        most = int(self.rank_loads.argmax())
        count = np.append(self.replicas, 2)  # The last is of empty places, which may be taken.
        spare = np.flatnonzero(count[self.expert_at] > 1)
        here = spare[self.rank_of[spare] == most]
        takers = np.flatnonzero(self.holds[most])
        others = np.flatnonzero(~self.holds[most])  # Among them EMPTY, as the last column.
        place = np.concatenate([np.repeat(spare, len(takers)), np.repeat(here, len(others))])
        taker = np.concatenate([np.tile(takers, len(spare)), np.tile(others, len(here))])
        own = np.where(self.expert_at[place] == EMPTY, len(self.load), self.expert_at[place])
        fits = (own != taker) & ~self.holds[self.rank_of[place], taker]
        place, taker, own = place[fits], taker[fits], own[fits]
        if not len(place):
            return False
        load, share = np.append(self.load, 0.0), self.share
        fewer = load[own] / np.maximum(count[own] - 1, 1)
        more = load[taker] / (count[taker] + 1)
        after = self.rank_loads + self.holds[:, own].T * (fewer - share[own])[:, None]
        after += self.holds[:, taker].T * (more - share[taker])[:, None]
        after[np.arange(len(place)), self.rank_of[place]] += more - fewer
        greatest = after.max(1)
        at_most = (after >= greatest[:, None] * (1 - ROUNDING)).sum(1)
        best = int(np.lexsort((at_most, greatest))[0])
        now = self.rank_loads.max()
        ties = int((self.rank_loads >= now * (1 - ROUNDING)).sum())
        same = greatest[best] <= now * (1 + ROUNDING) and at_most[best] < ties
        if not self._lower(greatest[best]) and not same:
            return False
        for expert, change in ((own[best], -1), (taker[best], 1)):
            if expert < len(self.load):
                self.replicas[expert] += change
        rank = self.rank_of[place[best]]
        new = EMPTY if taker[best] == len(self.load) else int(taker[best])
        self.holds[rank, own[best]], self.holds[rank, new] = False, new != EMPTY
        self.expert_at[place[best]] = new
        self.rank_loads = self.holds @ self.share
        return True

    def _lower(self, greatest: float) -> bool:
        """Returns whether that is lower than now, by more than rounding."""
        return bool(greatest < self.rank_loads.max() * (1 - ROUNDING))


def _pack(load: Floats, replicas: Ints, capacity: Ints) -> _Packing:
    """Puts places on ranks, the most loaded first, each on the least loaded rank with room."""
    packing = _Packing(load, replicas, capacity)
    order = sorted(range(len(load)), key=lambda expert: (-load[expert] / replicas[expert], expert))
    for expert in order:
        for _ in range(replicas[expert]):
            by_load = np.argsort(packing.rank_loads, kind="stable")
            lacking = [int(rank) for rank in by_load if not packing.holds[rank, expert]]
            place = next((at for at in map(packing.free, lacking) if at is not None), None)
            if place is None:
                place = _vacated(packing, expert, lacking[0])
            packing.put(place, expert)
    return packing


def _vacated(packing: _Packing, expert: int, rank: int) -> int:
    """Returns a place of a full rank, whose expert has moved to a rank that holds `expert`.

    There is one: the other rank has room, so it holds no more experts than this one, and `expert`
    is among them but not here. So some expert here is not there.
    """
    other = next(each for each in range(len(packing.rank_loads)) if packing.free(each) is not None)
    place = next(
        int(at)
        for at in np.flatnonzero(packing.rank_of == rank)
        if not packing.holds[other, packing.expert_at[at]]
    )
    there = packing.free(other)
    assert there is not None
    moving = int(packing.expert_at[place])
    packing.put(place, EMPTY)
    packing.put(there, moving)
    return place


def _at_places(
    on_ranks: list[list[Any]], capacity: Ints, before: Sequence[int] | None
) -> list[int]:
    """Returns the expert at each place; experts that were on the rank keep their places."""
    places = int(capacity.sum())
    if before is not None and len(before) != places:
        raise invalid("before", f"{places} places", f"{len(before)}")
    expert_at: list[int] = []
    for experts, room in zip(on_ranks, capacity, strict=True):
        first, left = len(expert_at), [int(expert) for expert in experts]
        row = [EMPTY] * int(room)
        for place in range(int(room)) if before is not None else ():
            assert before is not None
            if before[first + place] in left:
                row[place] = before[first + place]
                left.remove(row[place])
        expert_at += [expert if expert != EMPTY or not left else left.pop(0) for expert in row]
    return expert_at
