"""A Job: processes that work together, on which worlds and collectives stand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Unpack

from .collectives import Collectives
from .collectives.options import JobOptions
from .errors import Error
from .membership import Members
from .sizes import size_of
from .world import DEFAULT_ARENA_BYTES, DEFAULT_TIMEOUT, World, rendezvous
from .world.launched import Launched
from .world.network import NetworkOptions, native_network
from .world.world import check_device, check_timeout


class Job(Members):
    """One rank's membership in a job. All methods are safe to call from any thread.

    Every rank has a number, which it keeps whatever happens to the others; a lost rank's place is
    empty until a new process takes it. Worlds (tokens, memory) and collectives (gradients) of one
    job learn of a death together, and one call puts it behind both:

        job = tokenyard.connect("tcp://host:29500", rank=rank, size=size)
        world, collectives = job.world(), job.collectives()
        exchange = tokenyard.ExpertParallel(world, ...)
        ...                    # PeerLost, OperationAborted
        job.recover()
        exchange.dispatch(...)  # Among the ranks that are left.

    As a context manager it leaves the job in good order, or only closes if an exception ends the
    block.

    >>> with tokenyard.connect(store, secret="s", rank=0, size=1) as job:
    ...     job.world(arena_bytes=1 << 16).size, job.active_ranks()
    (1, [0])
    """

    _launcher: str | None = None
    _launched: Launched | None = None
    """The connection to the launch that started this rank, if it did."""

    @property
    def launcher(self) -> str | None:
        """Launcher that `from_env` found, such as "torchrun"; None for other jobs."""
        return self._launcher

    def waiting(self) -> list[int]:
        """Returns the ranks whose place a new process asks to take, ascending, without waiting.

        The member that a new process contacts knows at once, the others within some heartbeats.
        One that any member has let in waits no more: look at `active_ranks()`, too.
        """
        return self._native.waiting()

    def world(
        self,
        *,
        device: str = "host",
        arena_bytes: int = DEFAULT_ARENA_BYTES,
        timeout: float = DEFAULT_TIMEOUT,
        network: NetworkOptions | None = None,
        compact: bool = False,
    ) -> World:
        """Makes a world of the job's active ranks. Collective among them; blocks.

        Its ranks have the job's numbers; the rank of an empty place is absent. All ranks make
        their worlds in the same order. If ranks are lost meanwhile, the world is made without them.
        After a change of the membership, exchanges go on by themselves, and the world with them;
        until then, its own calls that need a lost rank keep failing.

        Args:
            device: "host", or "cuda" for one GPU per rank.
            arena_bytes: bytes of this rank that its peers can reach.
            timeout: deadline of this call and of every later wait of the world, in seconds.
            network: options of the network to ranks of other hosts; see NetworkOptions.
            compact: whether the active ranks are numbered anew, from 0, so that the world has no
                absent rank, as a megakernel demands. Its exchanges do not go on by themselves.

        Raises:
            PeerTimeout: a rank has not called it in time; names it.
            QuorumLost: too few ranks answer.
            Fenced: the others go on without this rank.
        """
        native = self._native.world(
            device=check_device(device),
            timeout_s=check_timeout(timeout),
            arena_bytes=size_of("arena_bytes", arena_bytes, largest=2**63 - 1),
            network=native_network(network),
            compact=bool(compact),
        )
        launched = self._launched
        if launched is not None:
            empty = native.left_out
            slots = [slot for slot in range(launched.ranks) if slot not in empty]
            launched = dataclasses.replace(launched, slots=slots, new=False)
            self._went_on(self.active_ranks())
        world = World(native, device, launched)
        world._launcher = self._launcher
        return world

    def _went_on(self, members: list[int]) -> list[int]:
        if self._launched is not None:
            self._launched.tell_left_out(set(range(self._launched.ranks)) - set(members))
        return members

    def collectives(self) -> Collectives:
        """Returns the collectives of this job; they end with the job, not when they are closed."""
        return Collectives(self._native.share(), founds=False)

    def metrics(self) -> dict[str, Any]:
        """Returns counts of this rank's job since its start; see `prometheus_text`.

        "epoch" is the number of the membership, "places" counts taken and empty ones,
        "active_ranks" and "waiting_ranks" list ranks, "joined", "lost" and "left" count the ranks
        that came, died or were evicted, and left in good order, "refused" the rejected connections
        and messages, and the others what their names say: docs/metrics.md.
        """
        counts = self._native.metrics()
        active, waiting = counts["active_ranks"], counts["waiting_ranks"]
        return {"rank": self.rank, **counts, "active": len(active), "waiting": len(waiting)}


def connect(
    store: str,
    *,
    secret: str | None = None,
    rank: int,
    size: int,
    join: bool = False,
    **options: Unpack[JobOptions],
) -> Job:
    """Starts a job together with its other ranks, or joins one; blocks until it has begun.

    Args:
        store: where the ranks find one another. "file:/a/directory/all/ranks/see" is created
            if its parent exists; "tcp://host:port" is a store that StoreServer or
            `python -m tokenyard store` runs, or else one that a rank on that host starts.
        secret: known to all ranks; connections without it are rejected. None: what the file
            `secret_file` holds, or what the environment's TOKENYARD_SECRET_FILE or
            TOKENYARD_SECRET says, and if there is none, a secret that the processes of this user
            on this host share.
        secret_file: a file with the secret, which only its owner may read.
        rank, size: this rank's number, and the number of ranks.
        join: whether to join a running job, in the place of a lost rank or in one that `grow`
            opens, which blocks until the members admit this rank.
        local_rank: index of this rank on its host, which selects its GPU; `rank` if None.
        job: the job's name, the same on all ranks; default "tokenyard".
        size_max: the size up to which `grow` may go; default `size`.
        timeout: default deadline of operations, in seconds; 30.
        silence: seconds without a heartbeat after which a rank counts as gone; 5.
        on_failure: what happens to an operation that was aborted because ranks were lost:
            "raise" OperationAborted, from later operations too, until `recover`, `shrink` or
            `replace`; "retry" it once new processes hold the lost ranks' places; or "exclude"
            the lost ranks and run it again among the survivors. Default "raise".
        places: the form of lists with one part per rank after ranks were lost: "kept",
            `size` parts, a lost rank's part zeros in results and not read in inputs; or
            "compact", one part per active rank, ascending by rank. The same on all ranks;
            default "kept".
        eager_limit: bytes up to which a message is sent eagerly: `Group.send` ends once it is
            copied, and has success even if its receiver is lost before it gets it. The send of a
            longer one ends once a receive has got it, and fails if the receiver is lost before. 0:
            no message is eager, not even an empty one, so each send lasts until its receive. From
            0 to 8192, the default; of this rank's sends, so ranks may differ.
        witness: whether the store has the casting vote when the ranks are cut into two equal
            halves; True.
        host_store: whether this rank may run the tcp store; True.
        address: address at which other ranks reach this one; detected if empty.
        host: ranks with the same name use shared memory, others the network. If empty, that of
            TOKENYARD_HOST_NAME, or else detected.

    Raises:
        PeerTimeout: a rank did not connect in time, or the members did not admit this one; names
            a rank.
        InvalidArgument: arguments are wrong or contradict each other, such as two ranks with one
            number.
    """
    return Job._enter("join" if join else "connect", store, secret, rank, size, **options)


def from_env(**options: Unpack[JobOptions]) -> Job:
    """Starts the job that the launcher's environment variables describe; blocks until all came.

    Reads what torchrun, Open MPI, MPICH, Intel MPI or Slurm's srun sets, or RANK, WORLD_SIZE,
    LOCAL_RANK, MASTER_ADDR and MASTER_PORT; `Job.launcher` says which was found, and
    `World.from_env` where the ranks meet and which secret they use.

    Args:
        options: as `connect`.

    Raises:
        InvalidArgument: names a variable that is missing, out of range, or contradicts another;
            or there is no secret, and the launcher is Slurm or MPI.
        PeerTimeout: a rank did not connect in time; names it.
    """
    place = rendezvous.from_environment(check_timeout(options.get("timeout", DEFAULT_TIMEOUT)))
    assert place.found is not None
    try:
        job = _at(place, options)
    except Error as error:
        error.add_note(f"The environment was read as {place.found}.")
        raise
    job._launcher = place.found.launcher
    return job


def from_torch(
    group: Any = None,
    ranks: Sequence[int] | None = None,
    **options: Unpack[JobOptions],
) -> Job | None:
    """Returns the job of a torch process group, or starts one of its ranks. Collective.

    A group of backend "tokenyard" has a job already; this is another handle of it, and `options`
    are not used.

    Args:
        group: a torch.distributed process group; the default group if None.
        ranks: ranks of the group that form this rank's job; ranks[i] becomes rank i. All ranks if
            None.
        options: as `connect`.

    Returns:
        The job, or None on a rank that is not among its own `ranks`.

    Raises:
        InvalidArgument: `ranks` is wrong, or differs between ranks of one job.
        PeerTimeout: a rank did not connect in time; names it.
    """
    native = rendezvous.job_of_group(group) if ranks is None else None
    if native is not None:
        return Job(native, founds=False)
    place = rendezvous.from_torch(group, ranks)
    return None if place is None else _at(place, options)


def _at(place: rendezvous.Place, options: JobOptions) -> Job:
    """Starts the job of this place."""
    own: JobOptions = {"job": place.job, "local_rank": place.local_rank}
    own["host_store"] = place.rank == 0
    own.update(options)
    store = rendezvous.store_at(place.host, place.port)
    try:
        return Job._enter("connect", store, place.secret, place.rank, place.size, **own)
    finally:
        if place.held is not None:
            place.held.release()
