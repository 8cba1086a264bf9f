"""The doctor's table of a job's network: times of put and signal between its ranks."""

from __future__ import annotations

import json
from typing import Any

from .errors import Error
from .world import World


def rows_of(world: World, *, timeout: float = 5.0) -> list[dict[str, Any]]:
    """Times this rank's peers and returns a row per pair of all ranks. Collective.

    Where the others cannot be told any more, the rows are this rank's.
    """
    mine: list[dict[str, Any]] = [
        {
            "rank": world.rank,
            "peer": times.rank,
            "how": times.how,
            "round_trip_us": round(times.round_trip_us, 2),
            "bytes_per_second": round(times.bytes_per_second),
            "error": times.error,
        }
        for times in world.time_peers(timeout=timeout)
    ]
    try:
        everybodys = world.all_gather(json.dumps(mine).encode(), what="doctor: tables")
    except Error:
        return mine
    return [row for rows in everybodys if rows for row in json.loads(rows)]


def places_of(world: World) -> dict[str, list[list[int]]]:
    """Returns the ranks of each host, or domain, and those of each rail."""
    on_host: dict[int, list[int]] = {}
    for rank, host in enumerate(world.topology.host_of):
        if host < world.size:  # An absent rank is on none.
            on_host.setdefault(host, []).append(rank)
    hosts = [on_host[host] for host in sorted(on_host)]
    places = range(max(map(len, hosts)))
    rails = [[ranks[place] for ranks in hosts if place < len(ranks)] for place in places]
    return {"hosts": hosts, "rails": rails}


def text_of(places: dict[str, list[list[int]]]) -> str:
    """Returns the places as text, a line each."""

    def line(name: str, groups: list[list[int]]) -> str:
        return f"{name:<6}" + "; ".join(
            f"{number}: ranks {', '.join(map(str, ranks))}" for number, ranks in enumerate(groups)
        )

    return "\n".join(line(name, groups) for name, groups in places.items())


def table_of(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as text, a line each."""
    if not rows:
        return "Every rank is within reach of loads and stores: there is no network to time."
    lines = [f"{'rank':>4} {'peer':>4} {'round trip':>12} {'rate':>12}  way"]
    for row in rows:
        pair = f"{row['rank']:>4} {row['peer']:>4}"
        if row["error"]:
            lines.append(f"{pair}  no: {row['error']}")
            continue
        trip = f"{row['round_trip_us']:.1f} us"
        rate = f"{row['bytes_per_second'] * 1e-9:.3g} GB/s"
        lines.append(f"{pair} {trip:>12} {rate:>12}  {row['how']}")
    return "\n".join(lines)
