"""Rows that combine for low latency asks for together are under way together.

nvcc may have each of several loads wait for the one before: where they lie in branches, or where
what is loaded is moved to other registers at once. Nothing else tells of it, and a combine then
takes up to twice as long. This compiles the kernels, disassembles them, and counts how many loads
of rows follow one another before anything asks for what one of them loads.

`--break` has each own row asked for alone first, and demands that all counts notice.
"""

import pathlib
import re
import subprocess
import sys

from compare import ROOT, SKIPPED, disassembly, parse

SOURCE = ROOT / "src/expert_parallel/low_latency/combine_gpu.cu"
# A lane's loads that are under way together, by kernel: of rows whose sums leave, and of own rows.
TOGETHER = {
    "combine_kernel_on_gpu": {4 * 2, 3 * 2},  # rows, two chunks of each
    "combine_logfmt_kernel_on_gpu": {2 * 1, 3 * 1},
}
OWN_AT_ONCE = ("expert_parallel/low_latency/sums_kernel.hpp", "kAtOnce = 3", "kAtOnce = 1")

INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
LOAD = "LDG.E.128.CONSTANT"


def registers(operands: str) -> set[int]:
    return {int(number) for number in re.findall(r"\bR(\d+)\b", operands)}


def batches(kernel: str) -> list[int]:
    """Of loads of rows: how many follow one another until one is waited for, or the code forks."""
    found, loads, awaited = [], 0, set()
    for match in map(INSTRUCTION.match, kernel.splitlines()):
        if not match:
            continue
        name, operands = match.groups()
        target, _, rest = operands.partition(",")
        if name == LOAD:
            loads += 1
            first = int(re.search(r"R(\d+)", target)[1])
            awaited |= set(range(first, first + 4))
            continue
        read = registers(operands if name.startswith("ST") else rest)
        if loads and (read & awaited or name.split(".")[0] in ("BRA", "BAR", "EXIT")):
            found.append(loads)
            loads, awaited = 0, set()
    return found


def compile_kernels(scratch: pathlib.Path, nvcc: str, arch: str, broken: bool) -> pathlib.Path:
    overlay = scratch / "one_by_one"
    if broken:
        name, line, instead = OWN_AT_ONCE
        text = (ROOT / "src" / name).read_text()
        if text.count(line) != 1:
            raise RuntimeError(f"{name} no longer says {line}")
        (overlay / name).parent.mkdir(parents=True, exist_ok=True)
        (overlay / name).write_text(text.replace(line, instead))
    cubin = scratch / f"combine_{arch}{'_broken' if broken else ''}.cubin"
    command = [
        nvcc, "-std=c++20", "--expt-relaxed-constexpr", "--Werror=all-warnings", "-cubin",
        f"-gencode=arch=compute_{arch},code=sm_{arch}",
        *([f"-I{overlay}"] if broken else []), f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}",
        "-o", str(cubin), str(SOURCE),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return cubin


def main() -> int:
    options, disassembler = parse(__doc__)
    if disassembler is None:
        return SKIPPED
    cubin = compile_kernels(options.scratch, options.nvcc, options.arch, options.broken)
    _, *kernels = disassembly(cubin, disassembler).split("Function : ")
    noticed = []
    for kernel in kernels:
        name = next(name for name in TOGETHER if name in kernel.partition("\n")[0])
        found = batches(kernel)
        print(f"{name}: loads of rows that are under way together: {found}")
        noticed.append(set(found) != TOGETHER[name])
    if len(kernels) < len(TOGETHER):
        raise RuntimeError(f"{cubin.name} holds {len(kernels)} kernels only")
    return 0 if all(one == options.broken for one in noticed) else 1


if __name__ == "__main__":
    sys.exit(main())
