"""Checks that low-latency combine's loads of several rows are in flight together.

nvcc may make each of several loads wait for the previous one, for example if they are in branches,
or if a loaded value is moved to other registers at once. Nothing else reveals it, and a combine
then takes up to twice as long. This compiles and disassembles the kernels, and counts how many
loads of rows follow one another before an instruction uses a loaded value.

`--break` first changes the kernels to load rows one by one; no kernel may then show either count.
"""

import pathlib
import re
import shutil
import subprocess
import sys

from compare import ROOT, SKIPPED, disassembly, parse

KERNEL = "expert_parallel/low_latency/kernels/combine_kernel.hpp"
# A lane's loads in flight together, by kernel: of rows whose sums are sent, and of local rows.
TOGETHER = {
    "combine_kernel_on_gpu": {4 * 2, 3 * 2},  # rows, two chunks of each
    "combine_logfmt_kernel_on_gpu": {2 * 1, 3 * 1},
}
# Each kernel has two entries: one takes its parameters, the other an array with one set per rank.
KERNELS = 2 * len(TOGETHER)
# The replacements that `--break` makes in files of FOLDER.
FOLDER = "expert_parallel/low_latency/kernels"
ONE_BY_ONE = [
    ("local_rows_kernel.hpp", "kAtOnce = 3", "kAtOnce = 1"),
    ("sums_codecs_kernel.hpp", "kRowsAtOnce = 4", "kRowsAtOnce = 1"),
    ("sums_codecs_kernel.hpp", "kRowsAtOnce = 2", "kRowsAtOnce = 1"),
]

INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
LOAD = "LDG.E.128.CONSTANT"


def registers(operands: str) -> set[int]:
    return {int(number) for number in re.findall(r"\bR(\d+)\b", operands)}


def batches(kernel: str) -> list[int]:
    """Returns lengths of runs of row loads, each ended by a use of a loaded value or a branch."""
    found, loads, awaited = [], 0, set()
    for match in map(INSTRUCTION.match, kernel.splitlines()):
        if not match:
            continue
        name, operands = match.groups()
        target, _, rest = operands.partition(",")
        loaded = set()
        if name == LOAD:
            first = int(re.search(r"R(\d+)", target)[1])
            loaded = set(range(first, first + 4))
        asked = registers(operands if name.startswith("ST") else rest) | loaded
        if loads and (asked & awaited or name.split(".")[0] in ("BRA", "BAR", "EXIT")):
            found.append(loads)
            loads, awaited = 0, set()
        loads += 1 if loaded else 0
        awaited |= loaded
    return found


def compile_kernels(scratch: pathlib.Path, nvcc: str, arch: str, broken: bool) -> pathlib.Path:
    overlay = scratch / "one_by_one"
    if broken:
        shutil.copytree(ROOT / "src" / FOLDER, overlay / FOLDER, dirs_exist_ok=True)
        for name, line, instead in ONE_BY_ONE:
            file = overlay / FOLDER / name
            text = file.read_text()
            if text.count(line) != 1:
                raise RuntimeError(f"{name} no longer says {line}")
            file.write_text(text.replace(line, instead))
    cubin = scratch / f"combine_{arch}{'_broken' if broken else ''}.cubin"
    source = cubin.with_suffix(".cu")
    source.write_text(f'#include "{KERNEL}"\n')
    command = [
        nvcc, "-std=c++20", "--expt-relaxed-constexpr", "--Werror=all-warnings", "-cubin",
        f"-gencode=arch=compute_{arch},code=sm_{arch}",
        *([f"-I{overlay}"] if broken else []), f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}",
        "-o", str(cubin), str(source),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return cubin


def main() -> int:
    options, disassembler = parse(__doc__)
    if disassembler is None:
        return SKIPPED
    cubin = compile_kernels(options.scratch, options.nvcc, options.arch, options.broken)
    _, *kernels = disassembly(cubin, disassembler).split("Function : ")
    right = []
    for kernel in kernels:
        name = next(name for name in TOGETHER if name in kernel.partition("\n")[0])
        found = batches(kernel)
        print(f"{name}: loads of rows in flight together: {found}")
        together = TOGETHER[name]
        none = bool(found) and together.isdisjoint(found)
        right.append(none if options.broken else together == set(found))
    if len(kernels) != KERNELS:
        raise RuntimeError(f"{cubin.name} holds {len(kernels)} kernels, not {KERNELS}")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
