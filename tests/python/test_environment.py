"""Launchers' variables: who wins, what is missing, and real launchers where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from ranks import world_alone

import tokenyard
from tokenyard.world.environment import PORT_FIRST, PORTS, find_rank
from tokenyard.world.node_list import NODES_MAX, expand_nodes
from tokenyard.world.rendezvous import from_environment

SECRET = "9f2c61d07b5e4a83-of-the-tests"

# As the launchers set them, seen with torch 2.15, Open MPI 4.1.4, MPICH 4.0.2 and Slurm 22.05.8.
TORCHRUN = dict(
    RANK="3",
    WORLD_SIZE="4",
    LOCAL_RANK="1",
    LOCAL_WORLD_SIZE="2",
    MASTER_ADDR="node7",
    MASTER_PORT="29400",
    TORCHELASTIC_RUN_ID="none",
    TORCHELASTIC_RESTART_COUNT="2",
)
EXPLICIT = dict(RANK="1", WORLD_SIZE="4", MASTER_ADDR="node7", MASTER_PORT="29500")
OPEN_MPI = dict(
    OMPI_COMM_WORLD_RANK="1",
    OMPI_COMM_WORLD_SIZE="2",
    OMPI_COMM_WORLD_LOCAL_RANK="1",
    OMPI_COMM_WORLD_LOCAL_SIZE="2",
    PMIX_NAMESPACE="629538817",
    PMIX_RANK="1",
)
MPICH = dict(PMI_RANK="1", PMI_SIZE="2", MPI_LOCALRANKID="1", MPI_LOCALNRANKS="2", PMI_FD="8")
PMI2_OF_SRUN = dict(PMI_RANK="3", PMI_SIZE="4", PMI_JOBID="1.0", PMI_FD="13")
SLURM = dict(
    SLURM_PROCID="3",
    SLURM_LOCALID="0",
    SLURM_NTASKS="4",
    SLURM_STEP_NUM_TASKS="4",
    SLURM_STEP_NUM_NODES="2",
    SLURM_STEP_NODELIST="n[01-02]",
    SLURM_STEP_ID="0",
    SLURM_JOB_ID="1",
    SLURMD_NODENAME="n02",
)
BATCH_SCRIPT = dict(SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NTASKS="4", SLURM_JOB_ID="1")


def refusal(*variables: Mapping[str, str], **more: str) -> tuple[str, str, str]:
    """Returns the variable that the error names, what was expected, and what was seen."""
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        find_rank({name: text for each in (*variables, more) for name, text in each.items()})
    assert str(caught.value).startswith(f"{caught.value.argument}: expected ")
    return caught.value.argument, caught.value.expected, caught.value.seen


@pytest.mark.parametrize(
    ("variables", "launcher", "place"),
    [
        (TORCHRUN, "torchrun", (3, 4, 1)),
        (EXPLICIT, "explicit variables", (1, 4, 1)),
        (EXPLICIT | dict(LOCAL_RANK="0"), "explicit variables", (1, 4, 0)),
        (OPEN_MPI, "Open MPI", (1, 2, 1)),
        (MPICH, "MPICH", (1, 2, 1)),
        (SLURM, "Slurm", (3, 4, 0)),
        (SLURM | PMI2_OF_SRUN, "Slurm", (3, 4, 0)),
        (SLURM | dict(PMIX_RANK="3", PMIX_NAMESPACE="slurm.pmix.1.0"), "Slurm", (3, 4, 0)),
        (dict(PMIX_RANK="2", WORLD_SIZE="4", LOCAL_RANK="0", MASTER_PORT="1"), "PMIx", (2, 4, 0)),
        # The first complete row counts.
        (SLURM | OPEN_MPI, "Open MPI", (1, 2, 1)),
        (SLURM | MPICH | EXPLICIT, "explicit variables", (1, 4, 1)),
        (SLURM | OPEN_MPI | TORCHRUN, "torchrun", (3, 4, 1)),
        (SLURM | dict(WORLD_SIZE="9"), "Slurm", (3, 4, 0)),
        (OPEN_MPI | dict(RANK="", WORLD_SIZE=" "), "Open MPI", (1, 2, 1)),
    ],
)
def test_the_first_complete_row_counts(
    variables: dict[str, str], launcher: str, place: tuple[int, int, int]
) -> None:
    found = find_rank(variables)
    assert (found.launcher, (found.rank, found.size, found.local_rank)) == (launcher, place)
    assert str(found).startswith(f"{launcher}: rank {found.rank} of {found.size} at tcp://")


def test_what_other_launchers_say_is_reported() -> None:
    assert find_rank(OPEN_MPI | SLURM).others == ("Slurm says rank 3 of 4",)
    agree = dict(SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="2")
    assert find_rank(OPEN_MPI | SLURM | agree).others == ()
    assert find_rank(TORCHRUN).others == ()


def test_where_ranks_meet() -> None:
    assert find_rank(TORCHRUN).store == "tcp://node7:29400"
    assert find_rank(EXPLICIT).store == "tcp://node7:29500"
    assert find_rank(EXPLICIT | dict(MASTER_ADDR="")).store == "tcp://127.0.0.1:29500"
    assert find_rank(EXPLICIT | dict(MASTER_ADDR="fd00::2")).store == "tcp://[fd00::2]:29500"
    asked = dict(TOKENYARD_STORE="file:/shared/store")
    assert find_rank(EXPLICIT | asked).store == "file:/shared/store"
    assert find_rank(SLURM | asked).store == "file:/shared/store"
    assert find_rank(TORCHRUN | asked).store == "tcp://node7:29400"  # Its agent has a store.

    host, port = find_rank(SLURM).store.rsplit(":", 1)
    assert host == "tcp://n01"
    assert PORT_FIRST <= int(port) < PORT_FIRST + PORTS
    assert find_rank(SLURM | dict(SLURM_STEP_NUM_NODES="1")).store == f"tcp://127.0.0.1:{port}"
    assert find_rank(SLURM | dict(MASTER_ADDR="n9", MASTER_PORT="7")).store == "tcp://n9:7"
    assert find_rank(OPEN_MPI).store.startswith("tcp://127.0.0.1:")


def test_jobs_of_a_host_are_told_apart() -> None:
    ports = {find_rank(OPEN_MPI | dict(PMIX_NAMESPACE=str(job))).store for job in range(50)}
    assert len(ports) > 40
    assert find_rank(SLURM).job == "slurm/1.0"
    assert find_rank(SLURM | dict(SLURM_STEP_ID="1")).job == "slurm/1.1"
    assert find_rank(OPEN_MPI).job == "openmpi/629538817"
    assert find_rank(TORCHRUN).job == "torchrun/none/2"
    assert find_rank(EXPLICIT).job == "tokenyard"


def test_mpich_names_no_job_so_its_process_does() -> None:
    """Here that is the process above this one, since the test's environment has no PMI_RANK."""
    if "PMI_RANK" in os.environ:
        pytest.skip("runs under MPICH")
    assert find_rank(MPICH).job.startswith(f"mpi/{os.getppid()}-")
    # Processes of several hosts have nothing in common that all of them can read.
    far = dict(MPI_LOCALNRANKS="1", MPI_LOCALRANKID="0", MASTER_ADDR="n1", MASTER_PORT="7")
    assert find_rank(MPICH | far).job == "tokenyard"


@pytest.mark.parametrize(
    ("variables", "argument", "expected", "seen"),
    [
        ({}, "RANK", "start the program with torchrun, mpirun or srun", "nothing"),
        (dict(RANK="3"), "WORLD_SIZE", "beside RANK='3' (explicit variables)", "nothing"),
        (dict(WORLD_SIZE="3"), "RANK", "beside WORLD_SIZE='3'", "nothing"),
        (dict(RANK="1", WORLD_SIZE="2"), "MASTER_PORT", "a free TCP port", "nothing"),
        (EXPLICIT | dict(RANK="4"), "RANK", "0 to 3 (explicit variables: WORLD_SIZE is 4)", "'4'"),
        (EXPLICIT | dict(RANK="-1"), "RANK", "0 to 3", "'-1'"),
        (EXPLICIT | dict(RANK="one"), "RANK", "0 to 3", "'one'"),
        (EXPLICIT | dict(RANK="1.0"), "RANK", "0 to 3", "'1.0'"),
        (EXPLICIT | dict(RANK="+1"), "RANK", "0 to 3", "'+1'"),
        (EXPLICIT | dict(RANK="\u0661"), "RANK", "0 to 3", "'\u0661'"),
        (EXPLICIT | dict(WORLD_SIZE="0"), "WORLD_SIZE", "at least 1", "'0'"),
        (EXPLICIT | dict(WORLD_SIZE="9" * 5000), "WORLD_SIZE", "at least 1", repr("9" * 5000)),
        (EXPLICIT | dict(LOCAL_RANK="-1"), "LOCAL_RANK", "at least 0", "'-1'"),
        (EXPLICIT | dict(MASTER_PORT="0"), "MASTER_PORT", "1 to 65535", "'0'"),
        (EXPLICIT | dict(MASTER_PORT="70000"), "MASTER_PORT", "1 to 65535", "'70000'"),
        (dict(TORCHELASTIC_RUN_ID="x"), "RANK", "start it with torchrun", "nothing"),
        (TORCHRUN | dict(MASTER_PORT=""), "MASTER_PORT", "torchrun's store", "nothing"),
        (TORCHRUN | dict(RANK="4"), "RANK", "(torchrun: WORLD_SIZE is 4)", "'4'"),
        (TORCHRUN | dict(LOCAL_RANK="2"), "LOCAL_RANK", "LOCAL_WORLD_SIZE is 2", "'2'"),
        (
            {name: text for name, text in OPEN_MPI.items() if name != "OMPI_COMM_WORLD_SIZE"},
            "OMPI_COMM_WORLD_SIZE",
            "beside OMPI_COMM_WORLD_RANK='1' and OMPI_COMM_WORLD_LOCAL_RANK='1' (Open MPI)",
            "nothing",
        ),
        (
            OPEN_MPI | dict(OMPI_COMM_WORLD_LOCAL_RANK="2"),
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "0 to 1 (Open MPI: OMPI_COMM_WORLD_LOCAL_SIZE is 2)",
            "'2'",
        ),
        (
            OPEN_MPI | dict(OMPI_COMM_WORLD_LOCAL_SIZE="3"),
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            "1 to 2 (Open MPI: OMPI_COMM_WORLD_SIZE is 2)",
            "'3'",
        ),
        (
            OPEN_MPI | dict(OMPI_COMM_WORLD_SIZE="4"),
            "MASTER_ADDR",
            "2 of 4 ranks are on this one (Open MPI): set it and MASTER_PORT, or TOKENYARD_STORE",
            "nothing",
        ),
        (MPICH | dict(PMI_RANK="2"), "PMI_RANK", "(MPICH: PMI_SIZE is 2)", "'2'"),
        (dict(PMI_RANK="1", PMI_SIZE="2"), "MPI_LOCALRANKID", "(MPICH): start it", "nothing"),
        (
            MPICH | dict(MPI_LOCALNRANKS="1", MPI_LOCALRANKID="0", MASTER_ADDR="n1"),
            "MASTER_PORT",
            "a free TCP port of rank 0's host (MPICH)",
            "nothing",
        ),
        (dict(PMIX_RANK="1"), "WORLD_SIZE", "beside PMIX_RANK='1' (PMIx)", "nothing"),
        (BATCH_SCRIPT, "SLURM_STEP_NUM_TASKS", "(Slurm): start it with srun", "nothing"),
        (SLURM | dict(SLURM_PROCID="4"), "SLURM_PROCID", "SLURM_STEP_NUM_TASKS is 4", "'4'"),
        (SLURM | dict(SLURM_STEP_NODELIST=""), "SLURM_STEP_NODELIST", "nodes", "nothing"),
        (SLURM | dict(SLURM_STEP_NODELIST="n[1-"), "SLURM_STEP_NODELIST", "such as", "'n[1-'"),
        # As --distribution=arbitrary places it.
        (
            SLURM | dict(SLURM_PROCID="0"),
            "SLURM_STEP_NODELIST",
            "set MASTER_ADDR to n02",
            "'n[01-02]'",
        ),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    variables: dict[str, str], argument: str, expected: str, seen: str
) -> None:
    named, wanted, got = refusal(variables)
    assert (named, got) == (argument, seen)
    assert expected in wanted


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1 n2"),
        ("node[01-03,7],gpu2", "node01 node02 node03 node7 gpu2"),
        ("gpu2,node[1]", "gpu2 node1"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[9-11]", "n9 n10 n11"),
        ("n[5,1-2]", "n5 n1 n2"),
        ("n[0099-0101]-ib", "n0099-ib n0100-ib n0101-ib"),
        ("rack[1-2]_blade[0-1]", "rack1_blade0 rack1_blade1 rack2_blade0 rack2_blade1"),
        ("a.example.org,b-2", "a.example.org b-2"),
    ],
)
def test_lists_of_nodes(text: str, nodes: str) -> None:
    assert expand_nodes(text) == nodes.split()


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "n1,", ",n1", "n1,,n2", "n[", "n[]", "n]", "n[1-]", "n[-2]", "n[2-1]", "n[a]"),
        *("n[1-2", "n[1,]", "n[[1]]", "n 1", "n[1-2-3]", "n[1:2]", "n[0-10/2]", "n[٣]"),
        *("n[0-999999999]", f"n[1-{NODES_MAX + 1}]", "n[1-999]m[1-999]"),
    ],
)
def test_malformed_lists_of_nodes(text: str) -> None:
    with pytest.raises(ValueError, match=r"no |more than"):
        expand_nodes(text)


def test_a_world_meets_at_tcp_addresses_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in EXPLICIT.items():
        monkeypatch.setenv(name, text)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    for wrong in ("file:/shared", "tcp://n1", "tcp://:7", "tcp://n1:0", "tcp://n1:65536", "n1:7"):
        monkeypatch.setenv("TOKENYARD_STORE", wrong)
        with pytest.raises(tokenyard.InvalidArgument, match="TOKENYARD_STORE") as caught:
            tokenyard.World.from_env()
        assert caught.value.seen == repr(wrong)


@pytest.mark.parametrize("variables", [OPEN_MPI, MPICH, SLURM], ids=["Open MPI", "MPICH", "Slurm"])
def test_launchers_without_a_store_need_a_secret(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (*TORCHRUN, "TOKENYARD_STORE", "TOKENYARD_SECRET", "TOKENYARD_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(tokenyard.InvalidArgument, match="python -c") as caught:
        tokenyard.World.from_env(timeout=0.2)
    assert caught.value.argument == "secret"
    assert "TOKENYARD_SECRET_FILE" in caught.value.expected
    own = tmp_path / "secret"
    own.write_text(SECRET, encoding="utf-8")
    own.chmod(0o600)
    monkeypatch.setenv("TOKENYARD_SECRET_FILE", str(own))
    assert from_environment(0.2).secret == SECRET


def test_ranks_by_explicit_variables_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "TOKENYARD_STORE", "TOKENYARD_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, text in EXPLICIT.items():
        monkeypatch.setenv(name, text)
    monkeypatch.delenv("TOKENYARD_SECRET", raising=False)
    assert from_environment(0.2).secret is None
    monkeypatch.setenv("TOKENYARD_SECRET", SECRET)
    place = from_environment(0.2)
    assert place.secret == SECRET
    assert SECRET not in repr(place)


def test_a_world_says_how_it_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TORCHRUN, "TOKENYARD_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOKENYARD_SECRET", SECRET)
    with world_alone() as world:
        assert world.launcher is None
    for name, text in (OPEN_MPI | dict(PMIX_NAMESPACE=f"test-{os.getpid()}")).items():
        monkeypatch.setenv(name, text)
    for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    with pytest.raises(tokenyard.PeerTimeout) as caught:
        tokenyard.World.from_env(timeout=0.2)
    assert "read as Open MPI: rank 0 of 2 at tcp://127.0.0.1:" in caught.value.__notes__[0]
    for name in ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        monkeypatch.setenv(name, "1")
    with tokenyard.World.from_env() as world:
        assert (world.launcher, world.rank, world.size) == ("Open MPI", 0, 1)
        with world.job.world() as another:
            assert another.launcher == "Open MPI"


PROGRAM = """
import tokenyard
with tokenyard.World.from_env(timeout=60, arena_bytes=1 << 20) as world:
    assert world.all_gather(b"%d" % world.rank) == [b"0", b"1"]
    print(f"{world.launcher}: rank {world.rank} of {world.size}\\n", end="", flush=True)
"""

# Debian's names for both kinds, where they are installed side by side.
MPIRUNS = [name for name in ("mpirun.openmpi", "mpirun.mpich") if shutil.which(name)] or ["mpirun"]


@pytest.mark.parametrize("in_shell", [False, True], ids=["bare", "in a shell"])
@pytest.mark.parametrize("mpirun", MPIRUNS)
def test_a_real_mpirun(mpirun: str, in_shell: bool, tmp_path: Path) -> None:
    if shutil.which(mpirun) is None:
        pytest.skip(f"needs {mpirun}")
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=True)
    name, options = "MPICH", []
    if "Open" in version.stdout:
        name, options = "Open MPI", ["--oversubscribe"]
        options += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    shell = ["sh", "-c", '"$0" "$@"; exit $?'] if in_shell else []
    command = [mpirun, *options, "-n", "2", *shell, sys.executable, str(program)]
    assert lines_of(command) == [f"{name}: rank {rank} of 2" for rank in range(2)]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_real_srun(nodes: int, tmp_path: Path) -> None:
    if shutil.which("srun") is None:
        pytest.skip("needs Slurm")
    command = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
    idle = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if idle.returncode != 0 or sum(map(int, idle.stdout.split())) < nodes:
        pytest.skip(f"needs {nodes} idle nodes")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    # Nodes of a test's cluster are names for this host, which nobody can resolve.
    more = {} if nodes == 1 else dict(MASTER_ADDR="127.0.0.1")
    command = ["srun", f"--nodes={nodes}", "--ntasks=2", sys.executable, str(program)]
    assert lines_of(command, **more) == [f"Slurm: rank {rank} of 2" for rank in range(2)]


def lines_of(command: list[str], **more: str) -> list[str]:
    """Returns the sorted output of a command in an environment of no other launcher."""
    mine = {name: text for name, text in os.environ.items() if name not in TORCHRUN} | more
    mine.pop("TOKENYARD_STORE", None)
    mine["TOKENYARD_SECRET"] = SECRET
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=mine
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())
