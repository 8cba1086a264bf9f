"""The options of the network between hosts, and its connections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import _tokenyard

from ..errors import invalid
from ..sizes import size_of


@dataclass(frozen=True)
class NetworkOptions:
    """How ranks reach ranks of other hosts: a thread per rank over TCP or libfabric, or a card.

    None takes the value of the environment variable, and without that the default. `transport`,
    `connections` and `queues` must be alike on all ranks. A transport that cannot obey an option or
    a variable refuses it by name.

    >>> NetworkOptions(connections=4)
    NetworkOptions(transport=None, interfaces=None, ports=None, connections=4, queues=None, \
queue_depth=None, timeout=None, gpu_memory=None, gid_index=None, traffic_class=None, \
service_level=None, pkey=None, mtu=None, retry_count=None, retry_timeout=None)
    """

    transport: str | None = None
    """"tcp", "gin", "libfabric", or "libfabric:" and the name of a provider, "ibgda", or "ibgda:"
    and the name of a card; by default "tcp". TOKENYARD_NETWORK"""
    interfaces: str | Sequence[str] | None = None
    """Names or addresses of the network interfaces that this rank may use, as a list or with commas
    between them; by default the one by which it reaches the job. Over "ibgda" they are cards
    ("mlx5_0", or "mlx5_0:1" with a port) or their interfaces, and the nearest to the GPU is used.
    "2=eth0" counts only for the rank of local rank, or GPU, 2. TOKENYARD_NETWORK_INTERFACES"""
    ports: str | None = None
    """Ports on which it may listen, such as "20000-20100"; by default any.
    TOKENYARD_NETWORK_PORTS"""
    connections: int | None = None
    """Sockets per peer, at most 6; by default 2, or one per interface if there are more.
    TOKENYARD_NETWORK_CONNECTIONS"""
    queues: int | None = None
    """Queues per peer; by default 4. TOKENYARD_NETWORK_QUEUES"""
    queue_depth: int | None = None
    """Requests of a queue that may be under way at once; by default 64, the most.
    TOKENYARD_NETWORK_QUEUE_DEPTH"""
    timeout: float | None = None
    """Seconds that requests wait for a connection that has broken, or on which nothing moves, at
    most half of the world's timeout; by default 5. TOKENYARD_NETWORK_TIMEOUT"""
    gpu_memory: bool | None = None
    """Whether receive rings of exchanges lie in memory of the GPU, over "libfabric"; by default
    where the provider registers it. TOKENYARD_NETWORK_GPU_MEMORY, 1 or 0"""
    gid_index: int | None = None
    """Of cards ("ibgda"), as those below: index of the address in its port's table; by default the
    best one. TOKENYARD_NETWORK_GID_INDEX"""
    traffic_class: int | None = None
    """0 to 255, whose upper six bits are the DSCP of IP packets; TCP has it, too.
    TOKENYARD_NETWORK_TRAFFIC_CLASS"""
    service_level: int | None = None
    """0 to 15; on Ethernet the priority, 0 to 7. TOKENYARD_NETWORK_SERVICE_LEVEL"""
    pkey: int | str | None = None
    """Key of the partition, a number or hexadecimal digits; by default the port's first.
    TOKENYARD_NETWORK_PKEY"""
    mtu: int | None = None
    """Bytes of a packet, 256 to 4096; by default the port's. TOKENYARD_NETWORK_MTU"""
    retry_count: int | None = None
    """Times that a request is sent again, 0 to 7; by default 7. TOKENYARD_NETWORK_RETRY_COUNT"""
    retry_timeout: int | None = None
    """1 to 31: a request is sent again after 4.096 us * 2^this; by default the longest with which
    all tries end within `timeout`. TOKENYARD_NETWORK_RETRY_TIMEOUT"""


def native_network(options: NetworkOptions | None) -> Any:
    """Returns the module's options.

    Raises:
        InvalidArgument: a value has the wrong type. Others are checked where the world is made.
    """
    if options is None:
        return _tokenyard.NetworkOptions()
    if not isinstance(options, NetworkOptions):
        raise invalid("network", "a NetworkOptions", type(options).__name__)
    interfaces = options.interfaces
    if interfaces is None:
        interfaces = ""
    elif not isinstance(interfaces, str):
        interfaces = ",".join(interfaces)
    return _tokenyard.NetworkOptions(
        transport=options.transport or "",
        interfaces=interfaces,
        ports=options.ports or "",
        connections=_number("connections", options.connections),
        queues=_number("queues", options.queues),
        queue_depth=_number("queue_depth", options.queue_depth),
        timeout_s=_seconds(options.timeout),
        gpu_memory=_choice("gpu_memory", options.gpu_memory),
        gid_index=_setting("gid_index", options.gid_index, 255),
        traffic_class=_setting("traffic_class", options.traffic_class, 255),
        service_level=_setting("service_level", options.service_level, 15),
        pkey=_partition(options.pkey),
        mtu=_number("mtu", options.mtu),
        retry_count=_setting("retry_count", options.retry_count, 7),
        retry_timeout=_number("retry_timeout", options.retry_timeout),
    )


def _number(name: str, value: int | None) -> int:
    return 0 if value is None else size_of(f"network.{name}", value, smallest=1, largest=2**32 - 1)


def _setting(name: str, value: int | None, largest: int) -> int | None:
    if value is None:
        return None
    return size_of(f"network.{name}", value, smallest=0, largest=largest)


def _choice(name: str, value: bool | None) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise invalid(f"network.{name}", "True or False", repr(value))
    return value


def _partition(value: int | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{size_of('network.pkey', value, smallest=0, largest=0xFFFF):#06x}"


def _seconds(value: float | None) -> float:
    if value is None:
        return 0.0
    if not isinstance(value, Real) or not 0 < float(value) <= 1e6:
        raise invalid("network.timeout", "seconds above 0", repr(value))
    return float(value)
