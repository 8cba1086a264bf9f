"""Metrics of exchanges, networks and jobs as Prometheus text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MEANING = {
    "dispatch_calls": "dispatches that this rank has made",
    "refused_dispatch_calls": "dispatches made without this rank's tokens, for a wrong argument",
    "combine_calls": "combines that this rank has made",
    "uncounted_calls": "calls whose rows no host has counted",
    "dispatched_tokens": "tokens that this rank has dispatched",
    "unplaced_choices": "choices of these tokens whose experts had no place",
    "received_rows_by_peer": "rows that dispatches have brought from a rank",
    "received_bytes_by_peer": "bytes of these rows and their scales",
    "returned_rows_by_peer": "rows that combines have brought to a rank",
    "returned_bytes_by_peer": "bytes of these rows",
    "received_choices_by_expert": "received rows that name a local expert",
    "received_bytes": "bytes of these rows and their scales",
    "lost_choices": "choices of this rank's tokens that combines lack",
    "wait_seconds_by_peer": "seconds that calls here have waited for a rank",
    "wait_cycles_by_peer": "cycles that calls here have waited for a rank",
    "slowest_rank": "the rank that calls here have waited for the longest",
    "link_sent_bytes_by_peer": "bytes put into a rank's ring on another host",
    "link_arrived_bytes_by_peer": "bytes that a rank of another host has put here",
    "link_credit_wait_seconds_by_peer": "seconds without a put, until a rank had read its ring",
    "link_row_wait_seconds_by_peer": "seconds without rows of a rank of another host",
    "send_wait_seconds": "seconds that warps waited for room for rows to other hosts",
    "forward_wait_seconds": "seconds that warps waited for rows of other hosts, or room for sums",
    "add_wait_seconds": "seconds that warps waited for sums of other hosts",
    "slowest_host": "the other host whose ranks calls here have waited for the longest",
    "slowest_rail": "the place on all hosts whose ranks calls here have waited for the longest",
    "masked_by_peer": "whether this rank continues without a rank: 1, else 0",
    "sent_bytes_by_peer": "bytes that the network between hosts has sent to a rank",
    "path_losses_by_peer": "times that a path to a rank was given up",
    "paths_up_by_peer": "paths to a rank that carry requests now",
    "epoch": "number of the membership",
    "places": "places in the job, taken or empty",
    "active": "ranks that are members",
    "waiting": "ranks whose new processes ask to join",
    "joined": "ranks that have become members",
    "lost": "ranks that died or were evicted",
    "left": "ranks that have left in good order",
    "epochs": "memberships that this rank has had",
    "excused": "evictions refused, since the rank had waited for a lost one itself",
    "stalls": "times that a rank was found to be slow",
    "heartbeats_late": "heartbeats that came after more than half of the silence allowed",
    "quorums_missed": "times that too few ranks answered to agree on anything",
    "links_made": "connections to other ranks",
    "links_lost": "connections to other ranks that ended without a goodbye",
    "refused": "connections and messages of strangers and of older epochs",
}
"""Key of `metrics()` and what its number is."""

GAUGES = (
    "slowest_rank",
    "slowest_host",
    "slowest_rail",
    "masked_by_peer",
    "paths_up_by_peer",
    "epoch",
    "places",
    "active",
    "waiting",
)
"""Keys whose numbers may fall; the others are counters."""

NOT_COUNTED = ("rows", "bytes", "wait_seconds", "lost_choices")
"""Totals of low latency that nobody keeps, unless the exchange was made with `totals`."""


def prometheus_text(*metrics: Mapping[str, Any]) -> str:
    """Returns metrics in Prometheus' text format, for an HTTP server to answer.

    A list becomes one sample per index, labelled `peer` or `expert`; a counter's name ends in
    `_total`; None is left out. Every key with a string becomes a label: several exchanges of one
    kind need one that tells them apart.

    Args:
        metrics: what `metrics()` of exchanges and of the job of this process, and
            `network_metrics()` of its world, returned.

    >>> def layer(world):
    ...     exchange = tokenyard.ExpertParallel(world, experts=2, hidden=8, topk=1, tokens_max=4)
    ...     exchange.dispatch(np.zeros((3, 8), np.float32), np.array([[0], [1], [1]]))
    ...     return tokenyard.prometheus_text(exchange.metrics() | {"layer": "7"})
    >>> print(*tokenyard.launch(layer, ranks=2)[1].splitlines()[:3], sep="\\n")
    # HELP tokenyard_expert_parallel_dispatch_calls_total dispatches that this rank has made
    # TYPE tokenyard_expert_parallel_dispatch_calls_total counter
    tokenyard_expert_parallel_dispatch_calls_total{rank="1",layer="7"} 1
    """
    families: dict[str, list[str]] = {}
    for one in metrics:
        texts = {key: text for key, text in one.items() if isinstance(text, str)}
        prefix = f"tokenyard_{texts.pop('exchange', 'job')}_"
        labels = {"rank": str(one["rank"])} | texts
        for key, meaning in MEANING.items():
            if one.get(key) is None:
                continue
            gauge = key in GAUGES
            name = prefix + key.split("_by_")[0] + ("" if gauge else "_total")
            kind = "gauge" if gauge else "counter"
            lines = families.setdefault(name, [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"])
            lines += [
                f"{name}{{{_text_of(labels | index)}}} {number}"
                for index, number in _samples(key, one[key])
            ]
    return "".join(line + "\n" for lines in families.values() for line in lines)


def _samples(key: str, value: Any) -> Iterator[tuple[dict[str, str], int | float]]:
    """Yields the labels of each number of a key, and the number."""
    if not isinstance(value, list):
        yield {}, value
        return
    label = key.split("_by_")[1]
    for index, number in enumerate(value):
        yield {label: str(index)}, number


def _text_of(labels: Mapping[str, str]) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())
