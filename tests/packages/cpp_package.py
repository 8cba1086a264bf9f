"""Installs the C++ library of a build folder, and builds and runs examples/cpp against it.

    python tests/packages/cpp_package.py BUILD

The programs are built twice, by find_package and by pkg-config. The prefix is moved before they are
built, since a package may say nowhere where it was installed first.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = {
    "exchange": "rank 3 sent 8 tokens",
    "all_reduce": "rank 0: 1 + 2 = 3 among the survivors",
    "own_task": "6 * (1, 2, 3) = (6, 12, 18) on host",
}
# The libraries that it may need when it runs.
NEEDED = re.compile(
    r"lib(stdc\+\+|gcc_s|m|c|dl|pthread|rt|cudart)\.so|ld-linux"
    r"|linux-vdso|libtokenyard\.so"
)


COMPILER = ("c++", "-std=c++20", "-Wall", "-Wextra", "-Werror")


def run(*command: str | pathlib.Path, **more: str) -> str:
    """Returns what a command printed; shows all of it where it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **more},
    )
    if done.returncode != 0:
        print("$", *command)
        print(done.stdout)
        sys.exit(f"it ended with {done.returncode}")
    return done.stdout


def check_symbols(library: pathlib.Path) -> int:
    """Returns how many symbols the library exports: those of its public headers and no other."""
    lines = run("nm", "-DC", "--defined-only", library).splitlines()
    names = [line.split(" ", 2)[2] for line in lines]
    named = re.compile(r"^((typeinfo|typeinfo name|vtable|non-virtual thunk to) for )?tokenyard::")
    foreign = [name for name in names if not named.match(name)]
    inside = [name for name in names if re.search(r"::(Impl|State)::", name)]
    if foreign or inside:
        sys.exit("exported, but not public:\n" + "\n".join((foreign + inside)[:20]))
    return len(names)


def check_headers(prefix: pathlib.Path) -> int:
    """Returns how many headers are installed; each public one compiles on its own."""
    include = prefix / "include"
    public = [
        header
        for header in sorted((include / "tokenyard").rglob("*.hpp"))
        if "internal" not in header.parts
    ]
    text = "".join(f"#include <{header.relative_to(include)}>\n" for header in public)
    for source in [f"#include <{h.relative_to(include)}>\n" for h in public] + [text]:
        subprocess.run(
            [*COMPILER, f"-I{include}", "-DTOKENYARD_WITH_CUDA=0", "-fsyntax-only", "-xc++", "-"],
            input=source,
            text=True,
            check=True,
        )
    return len(public)


def check_programs(folder: pathlib.Path, how: str, **more: str) -> None:
    """Runs each program and looks for its last line."""
    for name, expected in PROGRAMS.items():
        said = run(folder / name, **more)
        if expected not in said:
            sys.exit(f"{name}, built by {how}, printed {said!r} without {expected!r}")
        run(folder / name, "--help", **more)
        refused = subprocess.run(
            [folder / name, "--nonsense"],
            capture_output=True,
            text=True,
            env={**os.environ, **more},
        )
        if refused.returncode != 2 or "--nonsense" not in refused.stderr:
            sys.exit(f"{name} --nonsense ended with {refused.returncode}: {refused.stderr}")


def by_cmake(prefix: pathlib.Path, folder: pathlib.Path) -> None:
    """Builds the project examples/cpp, which finds the package itself."""
    run(
        *("cmake", "-S", ROOT / "examples" / "cpp", "-B", folder, "-G", "Ninja"),
        *(f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"),
    )
    run("cmake", "--build", folder)
    check_programs(folder, "find_package")


def check_components(prefix: pathlib.Path, folder: pathlib.Path) -> None:
    """A component that does not exist is refused with the reason."""
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(user CXX)\n"
        "find_package(tokenyard REQUIRED COMPONENTS mpi)\n"
    )
    command = ["cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}"]
    refused = subprocess.run(command, capture_output=True, text=True)
    if refused.returncode == 0 or 'no component "mpi"' not in refused.stderr:
        sys.exit(f"find_package(COMPONENTS mpi) said {refused.stderr}")


def by_pkg_config(prefix: pathlib.Path, folder: pathlib.Path) -> None:
    """Builds the same programs by a compiler's command."""
    folder.mkdir()
    path = str(next(prefix.glob("lib*/**/pkgconfig")))
    flags = run("pkg-config", "--cflags", "--libs", "tokenyard", PKG_CONFIG_PATH=path).split()
    sources = ROOT / "examples" / "cpp"
    for name in PROGRAMS:
        files = [sources / f"{name}.cpp"]
        if name == "own_task":
            (folder / "kernel.cpp").write_text(f'#include "{sources}/scale_kernel.hpp"\n')
            files.append(folder / "kernel.cpp")
        run(*COMPILER, "-O1", *files, *flags, "-o", folder / name)
    library = str(next(prefix.glob("lib*/**/libtokenyard.so")).parent)
    check_programs(folder, "pkg-config", LD_LIBRARY_PATH=library)


def main() -> int:
    """Installs, and uses what was installed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=pathlib.Path, help="folder of a build of the tree")
    build = parser.parse_args().build.resolve()
    run("cmake", "--build", build, "--target", "tokenyard_shared")
    with tempfile.TemporaryDirectory() as folder:
        first, prefix = pathlib.Path(folder, "first"), pathlib.Path(folder, "prefix")
        run("cmake", "--install", build, "--prefix", first, "--component", "cpp", "--strip")
        first.rename(prefix)
        library = next(prefix.glob("lib*/**/libtokenyard.so"))
        exported = check_symbols(library)
        needed = run("ldd", library).splitlines()
        if others := [line.strip() for line in needed if not NEEDED.search(line)]:
            sys.exit("the library needs more than it says:\n" + "\n".join(others))
        headers = check_headers(prefix)
        by_cmake(prefix, pathlib.Path(folder, "cmake"))
        check_components(prefix, pathlib.Path(folder, "components"))
        config = next(prefix.rglob("tokenyardConfig.cmake")).read_text()
        if shutil.which("pkg-config") is None:
            print("pkg-config is not here, and was not tried")
        elif "TOKENYARD_WITH_CUDA ON" not in config:
            by_pkg_config(prefix, pathlib.Path(folder, "pkg_config"))
        size = library.stat().st_size / 1e6
        print(f"libtokenyard.so: {size:.1f} MB, {exported} symbols, {headers} public headers")
        print("examples/cpp: built from the prefix, and run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
