"""Rows that combine for low latency asks for together are under way together.

nvcc may have each of several loads wait for the one before: where they lie in branches, or where
what is loaded is moved to other registers at once. Nothing else tells of it, and a combine then
takes up to twice as long. This compiles the kernel, disassembles it, and counts how many loads of
rows follow one another before anything asks for what one of them loads.

`--break` has each row asked for alone first, and demands that the count notices.
"""

import pathlib
import re
import subprocess
import sys

from compare import ROOT, SKIPPED, disassembly, parse

KERNEL = "combine_kernel_on_gpuE"
SOURCE = ROOT / "src/expert_parallel/low_latency/combine_gpu.cu"
TOGETHER = 8  # Four rows, two chunks each.
ROWS_AT_ONCE = ("expert_parallel/low_latency/sums_kernel.hpp", "kAtOnce = 4", "kAtOnce = 1")

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


def compile_kernel(scratch: pathlib.Path, nvcc: str, arch: str, broken: bool) -> pathlib.Path:
    overlay = scratch / "one_by_one"
    if broken:
        name, line, instead = ROWS_AT_ONCE
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
    cubin = compile_kernel(options.scratch, options.nvcc, options.arch, options.broken)
    text = disassembly(cubin, disassembler)
    kernel = text.partition(KERNEL)[2].partition("Function :")[0]
    found = batches(kernel)
    print(f"loads of rows that are under way together: {found}")
    together = bool(found) and all(count == TOGETHER for count in found)
    return 0 if together != options.broken else 1


if __name__ == "__main__":
    sys.exit(main())
