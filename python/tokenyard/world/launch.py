"""`launch` runs a function on every rank of a new world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from ..errors import Error, invalid
from ..sizes import size_of
from .network import NetworkOptions, native_network
from .processes import run_processes
from .threads import run_threads
from .world import DEFAULT_ARENA_BYTES, DEFAULT_TIMEOUT, check_device, check_timeout

Result = TypeVar("Result")


class LaunchOptions(TypedDict, total=False):
    """The options of `launch` that its result's type does not depend on."""

    processes: bool
    device: str
    hosts: int
    timeout: float
    arena_bytes: int
    network: NetworkOptions | None
    args: Sequence[Any]


@overload
def launch(
    fn: Callable[..., Result],
    ranks: int,
    *,
    on_death: Literal["end"] = "end",
    **options: Unpack[LaunchOptions],
) -> list[Result]: ...
@overload
def launch(
    fn: Callable[..., Result],
    ranks: int,
    *,
    on_death: Literal["continue", "replace"],
    **options: Unpack[LaunchOptions],
) -> list[Result | Error]: ...
def launch(
    fn: Callable[..., Result],
    ranks: int,
    *,
    processes: bool = False,
    device: str = "host",
    hosts: int = 1,
    timeout: float = DEFAULT_TIMEOUT,
    arena_bytes: int = DEFAULT_ARENA_BYTES,
    network: NetworkOptions | None = None,
    args: Sequence[Any] = (),
    on_death: Literal["end", "continue", "replace"] = "end",
) -> list[Result] | list[Result | Error]:
    """Calls `fn(world, *args)` once per rank of a new world; returns the results by rank.

    The first exception of a rank ends the others and is raised here, with a note that names the
    rank. Ctrl-C ends them, too. A rank whose call has returned has left its world: waits of other
    ranks for it raise PeerLost.

    Args:
        fn: the function that each rank runs. With `processes` it must be importable, as with
            multiprocessing: no lambda, and the program under `if __name__ == "__main__"`.
        ranks: number of ranks.
        processes: whether each rank is a process, instead of a thread of this one.
        device: "host", or "cuda": rank r on GPU r; all ranks on GPU 0 if there are fewer GPUs.
        hosts: number of hosts that the ranks count as being on, as equal parts in order. Threads
            are joined by a simulated network (on "cuda" by TCP), processes by TCP.
        timeout: deadline of every wait of a rank, in seconds.
        arena_bytes: bytes per rank that its peers can reach.
        network: options of the network between hosts (processes only); see NetworkOptions.
        args: further arguments of `fn`; with `processes` each rank gets a copy.
        on_death: the effect of a rank's death on the others (processes only). A rank is dead if it
            was killed, called sys.exit, or raised OutOfTouch. Any other exception ends the others,
            whatever is set here, unless they have rebuilt their world without its rank.

            - "end": ends the others and raises ProcessDied.
            - "continue": the others continue. Their waits for the rank raise PeerLost or
              PeerTimeout, and they may `World.rebuild` without it. The results hold the rank's
              error. A rank that they have left out and that does not end is killed once they have
              ended.
            - "replace": like "continue", and the others may `World.replace` the rank by a new
              process, which calls `fn` from its beginning and provides the rank's result.

    Returns:
        [ranks] the values that `fn` returned; or errors of dead ranks, see `on_death`.

    Raises:
        InvalidArgument: an argument is wrong.
        ProcessDied: a rank died, with on_death="end", or all ranks died.
        Any exception that a rank raised.

    >>> launch(lambda world, greeting: f"{greeting} {world.rank}", ranks=2, args=("hello",))
    ['hello 0', 'hello 1']
    """
    if not callable(fn):
        raise invalid("fn", "a function", type(fn).__name__)
    if not isinstance(args, Sequence):
        raise invalid("args", "a sequence of arguments", type(args).__name__)
    count = size_of("ranks", ranks, smallest=1)
    if on_death not in ("end", "continue", "replace"):
        raise invalid("on_death", "'end', 'continue' or 'replace'", repr(on_death))
    if on_death != "end" and not processes:
        raise invalid("on_death", "'end' without processes=True: threads die together", on_death)
    settings = dict(
        device=check_device(device),
        timeout_s=check_timeout(timeout),
        arena_bytes=size_of("arena_bytes", arena_bytes, largest=2**63 - 1),
    )
    parts = size_of("hosts", hosts, smallest=1)
    if not processes:
        if network is not None:
            raise invalid(
                "network", "None without processes=True: that one is simulated", "options"
            )
        return run_threads(fn, count, parts, settings, args)
    if parts > count:
        raise invalid("hosts", f"at most the {count} ranks", str(parts))
    native_network(network)  # Checks it before any process is started.
    return run_processes(fn, count, settings, args, on_death, parts, network)
