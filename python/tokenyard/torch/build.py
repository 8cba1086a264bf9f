"""Builds torch's backend against the installed torch, once, and loads it.

The cache key covers everything the build depends on: torch, Python, the compiler's ABI and our own
sources. Of several processes that need it at once, one builds and the others wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..errors import OsError, PeerTimeout, Unsupported

NAME = "tokenyard_backend"
HERE = Path(__file__).parent
UNITS = ("backend.cpp", "backend_device.cpp", "backend_membership.cpp", "module.cpp")
COMPILERS = ("c++", "g++", "clang++")
BUILD_S = 600.0
"""Longest wait for another process's build, in seconds; a build takes about half a minute."""


def load() -> ModuleType:
    """Returns the backend's module; builds it if it is not cached.

    Raises:
        Unsupported: there is no compiler, or it cannot compile this torch's headers.
        OsError: the cache folder cannot be written.
        PeerTimeout: another process's build does not end.
    """
    if NAME in sys.modules:
        return sys.modules[NAME]
    library = cached()
    if not library.exists():
        with _alone(library.with_suffix(".lock")):
            if not library.exists():
                _build(library)
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(library))
    spec = importlib.util.spec_from_file_location(NAME, library, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[NAME] = module
    return module


def cached() -> Path:
    """Returns the path of the module for this torch and these sources, built or not."""
    digest = hashlib.sha256()
    for fact in (torch.__version__, torch.version.git_version, *_flags(), *_include_folders()):
        digest.update(f"{fact}\n".encode())
    for source in sorted([*HERE.glob("*.cpp"), *HERE.glob("*.hpp")]):
        digest.update(source.read_bytes())
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache) / "tokenyard" / f"torch-{torch.__version__}-{digest.hexdigest()[:16]}"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return folder / f"{NAME}{suffix}"


def _flags() -> list[str]:
    flags = [
        *("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-w"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]
    # Older torch versions state the compiler ABI of their pybind11 classes.
    for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI"):
        value = getattr(torch._C, f"_PYBIND11_{name}", None)
        if value is not None:
            flags.append(f'-DPYBIND11_{name}="{value}"')
    return flags


def _include_folders() -> list[str]:
    headers = Path(torch.__file__).parent / "include"
    return [
        str(headers),
        str(headers / "torch" / "csrc" / "api" / "include"),
        sysconfig.get_path("include"),
    ]


def _build(library: Path) -> None:
    compiler = _compiler()
    _check_python_headers()
    print(
        f"tokenyard: building its backend for torch {torch.__version__}, about half a minute, "
        f"into {library.parent}",
        file=sys.stderr,
        flush=True,
    )
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        includes = [part for path in _include_folders() for part in ("-isystem", path)]
        objects = [str(Path(folder) / f"{unit}.o") for unit in UNITS]
        _run_all(
            [compiler, *_flags(), *includes, "-c", str(HERE / unit), "-o", object_]
            for unit, object_ in zip(UNITS, objects, strict=True)
        )
        libraries = Path(torch.__file__).parent / "lib"
        built = Path(folder) / library.name
        names = ("c10", "torch_cpu", "torch", "torch_python")
        links = [f"-L{libraries}", *(f"-l{name}" for name in names)]
        _run_all([[compiler, "-shared", *objects, *links, "-o", str(built)]])
        built.replace(library)  # Atomic: no process loads a partial file.


def _compiler() -> str:
    chosen = os.environ.get("CXX")
    for name in (chosen,) if chosen else COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    looked = f"CXX={chosen}" if chosen else ", ".join(COMPILERS)
    raise Unsupported(
        f"torch's backend tokenyard is compiled when it is first used, which takes a C++20 "
        f"compiler; looked for {looked}. Install one (apt install g++), or name it in CXX",
        asked="import tokenyard.torch",
        why="there is no C++ compiler",
    )


def _check_python_headers() -> None:
    folder = Path(sysconfig.get_path("include"))
    if not (folder / "Python.h").exists():
        raise Unsupported(
            f"torch's backend tokenyard is compiled when it is first used, which takes Python's "
            f"headers; there is no Python.h in {folder}. Install them (apt install python3-dev)",
            asked="import tokenyard.torch",
            why="there is no Python.h",
        )


def _run_all(commands: Iterator[list[str]] | list[list[str]]) -> None:
    """Runs commands in parallel; raises Unsupported with the output of the first that failed."""
    pipes: dict[str, Any] = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    running = [(command, subprocess.Popen(command, **pipes)) for command in commands]
    try:
        said = [process.communicate()[0] for _, process in running]
    finally:
        for _, process in running:
            process.kill()  # No effect on processes that have ended.
    for (command, process), text in zip(running, said, strict=True):
        if process.returncode != 0:
            raise Unsupported(
                f"building torch's backend failed: {' '.join(command)}\n{text[-4000:]}",
                asked="import tokenyard.torch",
                why="the compiler failed",
            )


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Holds a lock between processes; the system releases it if the process dies."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    except OSError as error:
        raise OsError(
            f"cannot keep what is built in {lock.parent}: {error.strerror}; XDG_CACHE_HOME names "
            "another folder",
            call="open",
            code=error.errno,
        ) from error
    with file:
        begin = time.monotonic()
        while not _locked(file.fileno()):
            if time.monotonic() - begin > BUILD_S:
                raise PeerTimeout(
                    f"another process has been building torch's backend for {BUILD_S:.0f} s "
                    f"and holds {lock}",
                    rank=0,
                    phase="torch: another process's build",
                    expected=1,
                    seen=0,
                    waited_s=BUILD_S,
                )
            time.sleep(0.1)
        yield


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
