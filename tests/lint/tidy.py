"""Style rules that a program can check. Run by ctest; prints file:line and the replacement."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINES_MAX = 400

# (what, where it applies, where it is at home, what to do instead)
BANNED = [
    (r"\b(threadIdx|blockIdx|blockDim|gridDim|__syncthreads|__syncwarp|__shfl\w*|__ballot\w*)\b",
     ("src/", "include/", "python/bindings/"), ("src/device/",), "the words of src/device"),
    (r"\basm\b", ("src/", "include/"), ("src/device/", "src/simt/"), "a word of src/device"),
    (r"<<<|__CUDACC__|__global__", ("src/", "include/", "tests/expert_parallel"), ("src/device/",),
     "DEFINE_KERNEL and launch()"),
    (r"\bgetenv\b", ("src/", "include/", "python/", "tests/"), ("src/base/environment",),
     "base/environment.hpp"),
    (r"\b(std::abort|abort|std::exit|exit|__trap|std::terminate)\s*\(", ("src/", "include/"),
     ("src/world/doctor_main.cpp",), "an exception of tokenyard/error.hpp"),
    (r"cuMulticast|multimem\.|\bNVLS\b", ("src/", "include/", "bench/", "python/"), (),
     "nothing: multicast is never used"),
    (r"\b(TODO|FIXME|XXX|HACK)\b", ("src/", "include/", "python/", "tests/", "bench/", "examples/"),
     ("tests/house/",), "an issue, or the thing itself"),
]  # fmt: skip
NAMES_BANNED = re.compile(r"(^|_)(utils?|common|helpers?|misc)(_|\.|$)")
CODE = (".cpp", ".hpp", ".cu", ".py")


def tracked() -> list[str]:
    """Every file that git knows or would, outside a checkout every file there is."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return [name for name in listing.stdout.splitlines() if (ROOT / name).is_file()]


def complaints(name: str) -> list[str]:
    """What is wrong with one file."""
    found = []
    if NAMES_BANNED.search(pathlib.Path(name).name):
        found.append(f"{name}: named after nothing; name the concept")
    text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    if len(lines) > LINES_MAX:
        found.append(f"{name}: {len(lines)} lines, over {LINES_MAX}; a concept wants to come out")
    for number, line in enumerate(lines, 1):
        if len(line) > 100 and not re.search(r"https?://", line):
            found.append(f"{name}:{number}: {len(line)} columns, over 100")
        code = re.sub(r'//.*|#.*|"(\\.|[^"\\])*"', "", line)
        for pattern, where, home, instead in BANNED:
            banned = re.search(pattern, code)
            if banned and name.startswith(where) and not name.startswith(home):
                found.append(f"{name}:{number}: {banned.group()} here; use {instead}")
    return found


def main() -> int:
    """Number of complaints, as an exit status."""
    names = [name for name in tracked() if name.endswith(CODE)]
    if not names:
        print("tidy: no files found: is this a git checkout?")
        return 1
    found = [complaint for name in names for complaint in complaints(name)]
    print("\n".join(found))
    print(f"tidy: {len(names)} files, {len(found)} complaints")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
