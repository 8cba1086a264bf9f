"""Backend tokenyard at its first use, and used wrongly."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from programs import start_python
from ranks import results_of
from torch_ranks import dist, in_job, needs_torch, torch, total

pytestmark = needs_torch


def importing(cache: Path, **environment: str) -> subprocess.Popen[str]:
    """Starts another process with this folder as its only cache."""
    return subprocess.Popen(
        [sys.executable, "-c", "import tokenyard.torch; print('imported')"],
        env=dict(os.environ, XDG_CACHE_HOME=str(cache), **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    _, said = importing(tmp_path, CXX="no-such-compiler").communicate(timeout=100)
    assert "tokenyard.errors.Unsupported" in said
    assert "CXX=no-such-compiler" in said
    assert "apt install g++" in said


def test_what_the_compiler_said_is_told(tmp_path: Path) -> None:
    broken = script(tmp_path / "c++", 'echo "no space left for broken.cpp" >&2; exit 1')
    _, said = importing(tmp_path / "cache", CXX=str(broken)).communicate(timeout=100)
    assert "tokenyard.errors.Unsupported" in said
    assert "no space left for broken.cpp" in said


def test_without_a_place_to_keep_it_the_variable_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way of a folder")
    _, said = importing(file).communicate(timeout=100)
    assert "tokenyard.errors.OsError" in said
    assert "XDG_CACHE_HOME" in said


def test_of_two_that_build_at_once_one_does(tmp_path: Path) -> None:
    """Uses a compiler that records its calls, and links by a copy of an earlier build."""
    from tokenyard.torch import build

    built, calls = build.cached(), tmp_path / "calls"
    compiler = script(
        tmp_path / "c++",
        f"""
        echo "$@" >> {calls}
        for out; do :; done
        case "$*" in *-shared*) cp {built} "$out" ;; *) : > "$out" ;; esac
        """,
    )
    importers = [importing(tmp_path / "cache", CXX=str(compiler)) for _ in range(3)]
    for importer in importers:
        out, said = importer.communicate(timeout=300)
        assert out == "imported\n", said
    assert len(calls.read_text().splitlines()) == len(build.UNITS) + 1


def script(path: Path, text: str) -> Path:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_package_of_another_version_is_refused() -> None:
    from tokenyard.torch import build

    functions = (ctypes.c_uint32 * 64)(999)  # A table that begins with its version.
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype = ctypes.py_object
    name = b"tokenyard.core_table"
    with pytest.raises(RuntimeError, match="the package has 999"):
        build.load().make(
            functions=capsule(ctypes.byref(functions), name, None),
            group=None,
            rank=0,
            size=1,
            timeout_s=1.0,
            name="",
            global_ranks=[0],
            backend_state=None,
            host_device=False,
        )


def wrong_uses(say: Any, rank: int, size: int, folder: Path) -> None:
    import tokenyard.torch

    store = dist.FileStore(str(folder / "other"), -1)
    place: dict[str, Any] = dict(store=store, rank=rank, world_size=size)
    with pytest.raises(tokenyard.InvalidArgument, match=r"pg_options.*tokenyard.torch.Options"):
        dist.init_process_group("tokenyard", **place, pg_options={"silence": 3})
    options = tokenyard.torch.Options(on_failure="ignore")
    with pytest.raises(tokenyard.InvalidArgument, match="on_failure"):
        dist.init_process_group("tokenyard", **place, pg_options=options)
    with pytest.raises(tokenyard.InvalidArgument, match="init_process_group was not called"):
        tokenyard.torch.collectives()
    with in_job(rank, size, folder):
        assert total(1) == size
        with pytest.raises(tokenyard.InvalidArgument, match=r"peer|to"):
            dist.group.WORLD.send([torch.ones(1)], 7, 0)
        dist.barrier()


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    results_of(wrong_uses, 2, tmp_path)


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    import tokenyard.torch  # noqa: F401

    with pytest.raises(TimeoutError, match="rank 1"):
        dist.init_process_group(
            "tokenyard",
            store=dist.FileStore(str(tmp_path / "store"), -1),
            rank=0,
            world_size=2,
            timeout=timedelta(seconds=2),
        )
    assert not dist.is_initialized()


HUNG = """
import os, sys, torch, torch.distributed as dist, tokenyard.torch
rank = int(sys.argv[1])
store = dist.FileStore(sys.argv[2], -1)
dist.init_process_group("tokenyard", store=store, rank=rank, world_size=2)
try:
    print("waiting", flush=True)
    if rank == 0:
        dist.all_reduce(torch.ones(3))
    else:
        sys.stdin.read()
except KeyboardInterrupt:
    print("interrupted", flush=True)
dist.destroy_process_group()
"""


def test_ctrl_c_ends_an_all_reduce_that_hangs(tmp_path: Path) -> None:
    ranks = [
        start_python("-c", HUNG, str(rank), tmp_path / "store", stdin=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "waiting\n"
        ranks[0].send_signal(signal.SIGINT)
        assert ranks[0].communicate(timeout=60)[0] == "interrupted\n"
        assert ranks[0].returncode == 0
        assert ranks[1].communicate(timeout=60)[0] == ""
        assert ranks[1].returncode == 0
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_the_compiler_is_told_the_interface_of_older_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenyard.torch import build

    names = ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")
    for name in names:
        monkeypatch.setattr(torch._C, f"_PYBIND11_{name}", f"_{name.lower()}", raising=False)
    flags = build._flags()
    for name in names:
        assert f'-DPYBIND11_{name}="_{name.lower()}"' in flags


@pytest.mark.parametrize("held", [False, True], ids=["new", "held"])
def test_a_group_of_a_job_that_exists_is_not_founded_alone(
    held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenyard.torch import Options, backend_state

    state = object.__new__(backend_state.BackendState)
    state.rank, state.global_ranks, state._timeout = 0, [0, 1], 5.0
    state._options, state._alone = Options(join=True, alone_first=True), False
    seen = []
    job = object() if held else None
    monkeypatch.setattr(backend_state, "job_that_holds", lambda ranks: job)
    monkeypatch.setattr(backend_state, "stay_alone", lambda *given: "alone")
    monkeypatch.setattr(backend_state, "Job", lambda *given: given)
    monkeypatch.setattr(state, "_attach", lambda job, founder: seen.append((job, founder)))
    state.enter()
    assert seen == [(job, False) if held else (("alone", [0, 1]), True)]
    assert state._alone is not held
    backend_state._backend_states.discard(state)
