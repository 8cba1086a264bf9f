"""Checks that the words of device/ cost nothing on a GPU: a kernel in words and the same kernel in
plain CUDA compile to the same memory accesses, barriers and fences.

Compiles and disassembles both, counts instructions by kind, and fails if the counts differ.
`--break` first weakens a release in the plain kernel, and fails unless the comparison notices.
"""

import argparse
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SKIPPED = 77  # ctest's SKIP_RETURN_CODE
PACKAGES = ["nvidia-cuda-cuobjdump==13.5.37", "nvidia-cuda-nvdisasm==13.5.37"]

# Instructions that move data, synchronise threads, order memory or control bulk copies.
COUNTED = re.compile(
    r"^(LD|ST|RED|ATOM|BAR|MEMBAR|FENCE|ERRBAR|CGAERRBAR|CCTL|SYNCS|UBLKCP|UTMA|DEPBAR|REDUX|SHFL"
    r"|WARPSYNC|NANOSLEEP|YIELD|LDL|STL|QSPC|CALL)"
)


def find_disassembler(scratch: pathlib.Path, nvcc: str) -> pathlib.Path | None:
    """Returns cuobjdump from the path or beside nvcc, or installs it from PyPI into `scratch`."""
    for folder in [*os.environ["PATH"].split(os.pathsep), pathlib.Path(nvcc).parent]:
        found = pathlib.Path(folder) / "cuobjdump"
        if found.exists() and (shutil.which("nvdisasm") or (found.parent / "nvdisasm").exists()):
            return found
    target = scratch / "disassembler"
    if not list(target.rglob("cuobjdump")):
        install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(target), *PACKAGES]
        installed = subprocess.run(install, capture_output=True, text=True, check=False)
        if installed.returncode != 0:
            print(installed.stderr)
            return None
    for name in ("cuobjdump", "nvdisasm"):
        next(target.rglob(f"bin/{name}")).chmod(0o755)
    return next(target.rglob("bin/cuobjdump"))


def compile_to(cubin: pathlib.Path, source: str, nvcc: str, arch: str) -> None:
    """Compiles a source with one kernel."""
    text = cubin.with_suffix(".cu")
    text.write_text(source)
    command = [
        nvcc, "-std=c++20", "--expt-relaxed-constexpr", "--Werror=all-warnings", "-cubin",
        f"-gencode=arch=compute_{arch},code=sm_{arch}",
        f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}", f"-I{ROOT / 'tests'}",
        "-o", str(cubin), str(text),
    ]  # fmt: skip
    subprocess.run(command, check=True)


def disassembly(cubin: pathlib.Path, disassembler: pathlib.Path) -> str:
    path = f"{disassembler.parent}{os.pathsep}{os.environ['PATH']}"
    dump = subprocess.run(
        [str(disassembler), "-sass", str(cubin)],
        capture_output=True, text=True, check=True, env={**os.environ, "PATH": path},
    )  # fmt: skip
    return dump.stdout


def instructions(cubin: pathlib.Path, disassembler: pathlib.Path) -> collections.Counter:
    """Counts each instruction of interest, with its modifiers: LDG.E.64.STRONG.SYS."""
    line = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
    lines = disassembly(cubin, disassembler).splitlines()
    found = [match.group(1) for match in map(line.match, lines) if match]
    if "EXIT" not in found:
        raise RuntimeError(f"{cubin.name}: no kernel in the disassembly")
    return collections.Counter(name for name in found if COUNTED.match(name))


def parse(description: str) -> tuple[argparse.Namespace, pathlib.Path | None]:
    """Returns the command line's options, and a disassembler if there is one."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--arch", default="90a")
    parser.add_argument("--scratch", type=pathlib.Path, required=True)
    parser.add_argument("--break", dest="broken", action="store_true")
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    disassembler = find_disassembler(options.scratch, options.nvcc)
    if disassembler is None:
        print("skipped: there is no cuobjdump, and it could not be installed")
    return options, disassembler


def main() -> int:
    """Returns 0 if the counts are equal; with --break, if they differ."""
    options, disassembler = parse(__doc__)
    if disassembler is None:
        return SKIPPED

    counts = {}
    for form in ("in_words", "in_cuda"):
        source = (HERE / f"{form}.hpp").read_text()
        if options.broken and form == "in_cuda":
            source = source.replace("red.release.sys", "red.relaxed.sys")
        cubin = options.scratch / f"{form}_{options.arch}.cubin"
        compile_to(cubin, source.replace("#pragma once", ""), options.nvcc, options.arch)
        counts[form] = instructions(cubin, disassembler)

    differences = 0
    print(f"{'sm_' + options.arch:32} {'in words':>8} {'in CUDA':>8}")
    for name in sorted(counts["in_words"] | counts["in_cuda"]):
        words, plain = counts["in_words"][name], counts["in_cuda"][name]
        print(f"{name:32} {words:8} {plain:8}{'' if words == plain else '   DIFFERENT'}")
        differences += words != plain
    print("the words cost nothing" if not differences else f"{differences} kinds differ")
    return 0 if (differences > 0) == options.broken else 1


if __name__ == "__main__":
    sys.exit(main())
