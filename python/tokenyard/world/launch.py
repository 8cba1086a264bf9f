"""`launch`: one function, run by every rank of a world made for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, overload

from ..errors import Error, invalid
from ..sizes import size_of
from .processes import run_processes
from .threads import run_threads
from .world import DEFAULT_ARENA_BYTES, DEFAULT_TIMEOUT, check_device, check_timeout

Result = TypeVar("Result")


@overload
def launch(
    fn: Callable[..., Result],
    ranks: int,
    *,
    processes: bool = False,
    device: str = "host",
    hosts: int = 1,
    timeout: float = DEFAULT_TIMEOUT,
    arena_bytes: int = DEFAULT_ARENA_BYTES,
    args: Sequence[Any] = (),
    on_death: Literal["end"] = "end",
) -> list[Result]: ...
@overload
def launch(
    fn: Callable[..., Result],
    ranks: int,
    *,
    processes: bool = False,
    device: str = "host",
    hosts: int = 1,
    timeout: float = DEFAULT_TIMEOUT,
    arena_bytes: int = DEFAULT_ARENA_BYTES,
    args: Sequence[Any] = (),
    on_death: Literal["continue", "replace"],
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
    args: Sequence[Any] = (),
    on_death: Literal["end", "continue", "replace"] = "end",
) -> list[Result] | list[Result | Error]:
    """Calls `fn(world, *args)` once for every rank, and returns what the calls returned, by rank.

    The first exception of a rank ends the others and is raised here, with a note that names the
    rank. Ctrl-C ends them too. A rank whose call has returned has left its world: whoever still
    waits for it gets PeerLost.

    Args:
        fn: what a rank does. With `processes`, a function that its module can be imported for, as
            with multiprocessing: not a lambda, and the program under `if __name__ == "__main__"`.
        ranks: how many.
        processes: a process for each rank instead of a thread in this one.
        device: "host", or "cuda": rank r on GPU r; all ranks on GPU 0 if there are fewer GPUs.
        hosts: simulated hosts, which reach each other over a simulated network (threads only).
        timeout: seconds that any wait of a rank may take.
        arena_bytes: memory of a rank that its peers can reach.
        args: passed on to `fn`; each rank has its own copy with `processes`.
        on_death: what the death of a rank's process does to the others (processes only). A rank has
            died that was killed, called sys.exit, or raised OutOfTouch. An exception is no death:
            it ends the others, whatever is said here, unless they have rebuilt their world without
            its rank.

            - "end": it ends them, and ProcessDied is raised.
            - "continue": they go on: each has PeerLost or PeerTimeout from what waits for the
              rank, and may `World.rebuild` without it. In the results the rank's error stands in
              the place of what it would have returned. A rank that they have left out and that
              does not end is killed after they have ended.
            - "replace": as "continue", and the others may `World.replace` the rank by a new
              process, which calls `fn` from its beginning; its result is the rank's.

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
    if not processes:
        return run_threads(fn, count, size_of("hosts", hosts, smallest=1), settings, args)
    if hosts != 1:
        raise invalid("hosts", "1 with processes=True: simulated hosts are threads", str(hosts))
    return run_processes(fn, count, settings, args, on_death)
