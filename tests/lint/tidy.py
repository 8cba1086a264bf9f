"""Checks words, names and lengths in code. Prints file:line and the replacement."""

import pathlib
import re
import sys

import sources

LINES_HINT = 400

# (what, where it applies, where it is at home, what to do instead)
BANNED = [
    (r"\b(threadIdx|blockIdx|blockDim|gridDim|__syncthreads|__syncwarp|__shfl\w*|__ballot\w*)\b",
     ("src/", "include/", "python/bindings/"), ("src/device/",), "the words of src/device"),
    (r"\basm\b", ("src/", "include/"), ("src/device/", "src/simt/"), "a word of src/device"),
    (r"<<<|__CUDACC__|__global__", ("src/", "include/", "tests/expert_parallel"), ("src/device/",),
     "TOKENYARD_DEFINE_KERNEL and launch()"),
    (r"\bgetenv\b", ("src/", "include/", "python/", "tests/"), ("src/base/environment",),
     "base/environment.hpp"),
    (r"\b(std::abort|abort|std::exit|exit|__trap|std::terminate)\s*\(", ("src/", "include/"),
     ("src/world/doctor_main.cpp",), "an exception of tokenyard/error.hpp"),
    (r"cuMulticast|multimem\.|\bNVLS\b", ("src/", "include/", "bench/", "python/"), (),
     "nothing: multicast is never used"),
    (r"\b(TODO|FIXME|XXX|HACK)\b", ("src/", "include/", "python/", "tests/", "bench/", "examples/"),
     ("tests/lint/",), "an issue, or the thing itself"),
]  # fmt: skip
NAMES_BANNED = re.compile(r"(^|_)(utils?|common|helpers?|misc)(_|\.|$)")
FOLDERS_ALLOWED = ("common",)
MACRO_WITHOUT_PREFIX = re.compile(r"\s*#\s*define\s+(?!TOKENYARD_)(\w+)")
# Files that define others, and why.
MACROS_ALLOWED = {
    "src/megakernel/tasks/builtin_watched.cpp": "renames the namespace of what it includes",
}
FOREIGN = ("compat/",)  # Its folders have the names that another library gave them.


def misnamed(name: str) -> list[str]:
    """Returns a complaint if the file, or a folder above it, has a name that says nothing."""
    *folders, file = pathlib.Path(name).parts
    words = [file]
    if not name.startswith(FOREIGN):
        words += [folder for folder in folders if folder not in FOLDERS_ALLOWED]
    return [
        f"{name}: {word} names no concept; name the file or folder after its content"
        for word in words
        if NAMES_BANNED.search(word)
    ]


def long_file(name: str, text: str) -> list[str]:
    """Returns a note if the file is longer than the hint."""
    lines = len(text.splitlines())
    if lines <= LINES_HINT:
        return []
    return [f"{name}: {lines} lines, over {LINES_HINT}; is it one concept?"]


def complaints(name: str, text: str) -> list[str]:
    """Returns what is wrong with one file."""
    found = misnamed(name)
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > 100 and not re.search(r"https?://", line):
            found.append(f"{name}:{number}: {len(line)} columns, over 100")
        macro = MACRO_WITHOUT_PREFIX.match(line)
        if macro and name.startswith(("src/", "include/")) and name not in MACROS_ALLOWED:
            found.append(f"{name}:{number}: {macro.group(1)} here; use TOKENYARD_{macro.group(1)}")
        code = re.sub(r'//.*|#.*|"(\\.|[^"\\])*"', "", line)
        for pattern, where, home, instead in BANNED:
            banned = re.search(pattern, code)
            if banned and name.startswith(where) and not name.startswith(home):
                found.append(f"{name}:{number}: {banned.group()} here; use {instead}")
    return found


def main() -> int:
    """Returns 1 if anything is wrong."""
    sources.options(__doc__)
    files = sources.texts()
    if not files:
        print("tidy: no files found: is this a git checkout?")
        return 1
    notes = [note for name, text in files.items() for note in long_file(name, text)]
    found = [complaint for name, text in files.items() for complaint in complaints(name, text)]
    return sources.report("tidy", notes, found, f"{len(files)} files")


if __name__ == "__main__":
    sys.exit(main())
