"""Finds a rank's place in its job from the environment variables that launchers set.

Each launcher is a row of LAUNCHERS, and the first row whose variables are all set counts:

1. torchrun, and variables of the same names that a script sets, since somebody chose them for this
   program: torchrun may itself run under srun or mpirun.
2. MPI before Slurm, since `mpirun` in an allocation starts its ranks, or its daemons, as a Slurm
   step and passes Slurm's variables on.
3. Slurm by the variables of a step, because a batch script has SLURM_PROCID and SLURM_NTASKS, too.

An empty variable counts as one that is not set. Other complete rows may contradict the first; they
are reported beside it and are no error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from ..errors import InvalidArgument, invalid
from .node_list import expand_nodes

STORE_VARIABLE = "TOKENYARD_STORE"
"""Names the job's store: "tcp://host:port" or "file:/dir"."""
PORT_FIRST, PORTS = 20000, 12000
"""Ports derived from a job's name. They end below 32768, from where Linux chooses ports itself."""
LOCALHOST = "127.0.0.1"


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks, and the variables that tell each rank its place."""

    name: str
    start: str
    """Command that starts ranks, for error messages."""
    rank: str
    size: str
    local_rank: str
    local_size: str | None = None
    """Variable with the number of ranks on this host, if there is one."""
    marker: str | None = None
    """Variable that must be set besides, since others set the rest, too."""
    local_rank_needed: bool = True
    """Whether a rank without a local rank is incomplete; if not, it defaults to the rank."""

    def needs(self) -> dict[str, str]:
        """Returns the variables that make the row complete, with what each one says."""
        needed = {self.rank: "this rank's number", self.size: "the number of ranks"}
        if self.local_rank_needed:
            needed[self.local_rank] = "this rank's index on its host"
        if self.marker is not None:
            needed[self.marker] = "what only the launcher sets"
        return needed


TORCHRUN = Launcher(
    "torchrun",
    "torchrun",
    rank="RANK",
    size="WORLD_SIZE",
    local_rank="LOCAL_RANK",
    local_size="LOCAL_WORLD_SIZE",
    marker="TORCHELASTIC_RUN_ID",
    local_rank_needed=False,
)
EXPLICIT = Launcher(
    "explicit variables",
    "a launcher",
    rank="RANK",
    size="WORLD_SIZE",
    local_rank="LOCAL_RANK",
    local_rank_needed=False,
)
OPEN_MPI = Launcher(
    "Open MPI",
    "mpirun",
    rank="OMPI_COMM_WORLD_RANK",
    size="OMPI_COMM_WORLD_SIZE",
    local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
    local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
)
MPICH = Launcher(
    "MPICH",  # Intel MPI's mpirun descends from it and sets the same variables.
    "mpirun",
    rank="PMI_RANK",
    size="PMI_SIZE",
    local_rank="MPI_LOCALRANKID",
    local_size="MPI_LOCALNRANKS",
)
SLURM = Launcher(
    "Slurm",
    "srun",
    rank="SLURM_PROCID",
    size="SLURM_STEP_NUM_TASKS",
    local_rank="SLURM_LOCALID",
    marker="SLURM_STEP_ID",
)
PMIX = Launcher(  # PMIx itself has no variable for the size; a script may add the rest.
    "PMIx",
    "srun or Open MPI's mpirun",
    rank="PMIX_RANK",
    size="WORLD_SIZE",
    local_rank="LOCAL_RANK",
)
LAUNCHERS = (TORCHRUN, EXPLICIT, OPEN_MPI, MPICH, SLURM, PMIX)
BY_HAND = "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"


@dataclass(frozen=True)
class FoundRank:
    """A rank's place in its job."""

    launcher: str
    """Name of the launcher: "torchrun", "explicit variables", "Open MPI", "MPICH", "Slurm" or
    "PMIx"."""
    rank: int
    size: int
    local_rank: int
    store: str
    """Address at which the ranks meet: "tcp://host:port", or what TOKENYARD_STORE says."""
    job: str
    """A name that this job's ranks share, and other jobs do not where the launcher tells them
    apart."""
    others: tuple[str, ...] = ()
    """Contradictions: what other launchers' variables say."""

    def __str__(self) -> str:
        found = f"{self.launcher}: rank {self.rank} of {self.size} at {self.store}"
        return "; ".join([found, *self.others])


def find_rank(variables: Mapping[str, str] | None = None) -> FoundRank:
    """Returns this rank's place by `variables`, by default the process's.

    Raises:
        InvalidArgument: names a variable that is missing, is no number in range, or contradicts
            another of its launcher.
    """
    given = os.environ if variables is None else variables
    known = {name: text.strip() for name, text in given.items() if text.strip()}
    complete = [launcher for launcher in LAUNCHERS if launcher.needs().keys() <= known.keys()]
    if not complete:
        raise _incomplete(known)
    return _read(complete[0], complete[1:], known)


def _incomplete(known: Mapping[str, str]) -> InvalidArgument:
    """Names what is missing from the row that lacks least, of those with a variable set."""
    begun = [launcher for launcher in LAUNCHERS if _is_begun(launcher, known)]
    if not begun:
        starts = "start the program with torchrun, mpirun or srun"
        return invalid("RANK", f"this rank's number: {starts}, or {BY_HAND}", "nothing")
    launcher = min(begun, key=lambda each: len(each.needs().keys() - known.keys()))
    needed = launcher.needs()
    missing = next(name for name in needed if name not in known)
    seen = " and ".join(f"{name}={known[name]!r}" for name in needed if name in known)
    remedy = BY_HAND if launcher is EXPLICIT else f"start it with {launcher.start}, or {BY_HAND}"
    expected = f"{needed[missing]}, beside {seen} ({launcher.name}): {remedy}"
    return invalid(missing, expected, "nothing")


def _is_begun(launcher: Launcher, known: Mapping[str, str]) -> bool:
    if launcher is TORCHRUN:  # The rest of its variables are also the explicit ones.
        return launcher.marker in known
    return launcher.rank in known or (launcher is EXPLICIT and launcher.size in known)


def _read(launcher: Launcher, others: list[Launcher], known: Mapping[str, str]) -> FoundRank:
    size = _number(launcher, launcher.size, known, 1)
    bound = f"{launcher.size} is {size}"
    rank = _number(launcher, launcher.rank, known, 0, size - 1, bound)
    local_size = None
    if launcher.local_size is not None and launcher.local_size in known:
        local_size = _number(launcher, launcher.local_size, known, 1, size, bound)
    one_host = local_size == size
    job = _job(launcher, known, one_host)
    return FoundRank(
        launcher.name,
        rank,
        size,
        _local_rank(launcher, known, rank, local_size),
        _store(launcher, known, job, rank, one_host),
        job or "tokenyard",
        tuple(_contradictions(launcher, others, known)),
    )


def _local_rank(
    launcher: Launcher, known: Mapping[str, str], rank: int, local_size: int | None
) -> int:
    if launcher.local_rank not in known:
        return rank
    if local_size is None:
        return _number(launcher, launcher.local_rank, known, 0)
    bound = f"{launcher.local_size} is {local_size}"
    return _number(launcher, launcher.local_rank, known, 0, local_size - 1, bound)


def _number(
    launcher: Launcher,
    name: str,
    known: Mapping[str, str],
    smallest: int,
    largest: int | None = None,
    why: str = "",
) -> int:
    """Reads decimal digits only: int() would take "+1", "1_0" and other scripts' digits as well."""
    text = known[name]
    digits = text.isascii() and text.isdecimal() and len(text) < 10
    if digits and smallest <= int(text) and (largest is None or int(text) <= largest):
        return int(text)
    if largest is None:
        expected = f"an integer of at least {smallest} ({launcher.name})"
    else:
        expected = f"an integer from {smallest} to {largest} ({launcher.name}: {why})"
    raise invalid(name, expected, repr(text))


def _contradictions(
    launcher: Launcher, others: list[Launcher], known: Mapping[str, str]
) -> list[str]:
    mine = known[launcher.rank], known[launcher.size]
    return [
        f"{other.name} says rank {known[other.rank]} of {known[other.size]}"
        for other in others
        if (known[other.rank], known[other.size]) != mine
    ]


def _job(launcher: Launcher, known: Mapping[str, str], one_host: bool) -> str | None:
    """Returns a name that all ranks of this job have, and no others; None if there is none."""
    if launcher is TORCHRUN:
        restarts = known.get("TORCHELASTIC_RESTART_COUNT", "0")
        return f"torchrun/{known['TORCHELASTIC_RUN_ID']}/{restarts}"
    if launcher is SLURM:
        return f"slurm/{known.get('SLURM_JOB_ID', '0')}.{known['SLURM_STEP_ID']}"
    if launcher is OPEN_MPI and "PMIX_NAMESPACE" in known:
        return f"openmpi/{known['PMIX_NAMESPACE']}"
    if launcher in (OPEN_MPI, MPICH) and one_host:
        process = _process_that_lacks(launcher.rank)
        return None if process is None else f"mpi/{process}"
    return None


def _process_that_lacks(variable: str) -> str | None:
    """Returns a name of this process's nearest ancestor in whose environment `variable` is not set.

    That is the launcher's daemon, also where a rank runs in a shell of its own. All ranks of a host
    find the same. None where the ancestors cannot be read, as in a container per rank.
    """
    process = os.getppid()
    try:
        while process > 0:
            folder = Path("/proc") / str(process)
            environment = (folder / "environ").read_bytes().split(b"\0")
            # The name, in parentheses, may hold spaces.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if not any(entry.startswith(variable.encode() + b"=") for entry in environment):
                return f"{process}-{fields[19]}"  # Field 22, its start: numbers are used again.
            process = int(fields[1])
    except OSError:
        pass
    return None


def _store(
    launcher: Launcher, known: Mapping[str, str], job: str | None, rank: int, one_host: bool
) -> str:
    if STORE_VARIABLE in known and launcher is not TORCHRUN:  # Its agent serves a store.
        return known[STORE_VARIABLE]
    host = known.get("MASTER_ADDR") or _host(launcher, known, rank, one_host)
    if "MASTER_PORT" in known:
        name = "MASTER_PORT"
        port = _number(launcher, name, known, 1, 65535, "a TCP port on which rank 0 listens")
    elif launcher is not TORCHRUN and job is not None:
        port = PORT_FIRST + crc32(job.encode()) % PORTS
    else:
        expected = f"a free TCP port of rank 0's host ({launcher.name}), or {STORE_VARIABLE}"
        if launcher is TORCHRUN:
            expected = "the port of torchrun's store, which torchrun sets"
        raise invalid("MASTER_PORT", expected, "nothing")
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _host(launcher: Launcher, known: Mapping[str, str], rank: int, one_host: bool) -> str:
    if launcher is SLURM:
        return _first_node(known, rank)
    if launcher in (OPEN_MPI, MPICH) and not one_host:
        here = known.get(launcher.local_size or "", "?")
        expected = (
            f"the address of rank 0's host, since {here} of {known[launcher.size]} ranks are on"
            f" this one ({launcher.name}): set it and MASTER_PORT, or {STORE_VARIABLE}, or pass"
            " deep_ep's comm= a communicator of mpi4py"
        )
        raise invalid("MASTER_ADDR", expected, "nothing")
    return LOCALHOST


def _first_node(known: Mapping[str, str], rank: int) -> str:
    """Returns the name of the step's first node, on which Slurm starts task 0 unless told not to.

    Raises:
        InvalidArgument: the list of nodes is missing or malformed; or this is rank 0 on another
            node, as --distribution=arbitrary places it.
    """
    if known.get("SLURM_STEP_NUM_NODES") == "1":
        return LOCALHOST
    name = "SLURM_STEP_NODELIST"
    text = known.get(name)
    if text is None:
        raise invalid(name, "the step's nodes (Slurm), or MASTER_ADDR", "nothing")
    try:
        first = expand_nodes(text)[0]
    except ValueError as error:
        expected = f"a list such as node[01-03,7] (Slurm; {error}), or MASTER_ADDR"
        raise invalid(name, expected, repr(text)) from None
    if rank == 0 and known.get("SLURMD_NODENAME", first) != first:
        here = known["SLURMD_NODENAME"]
        expected = f"rank 0's node first (Slurm: it is on {here}); set MASTER_ADDR to {here}"
        raise invalid(name, expected, repr(text))
    return first
