"""The parts that have mutants, and where everything lies."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
# Another folder, where two sweeps run side by side.
BUILD = pathlib.Path(os.environ.get("TOKENYARD_MUTANTS_BUILD", ROOT / "build" / "mutants"))

# In this order a sweep takes them. Each is a folder of the sources, and a row of the results.
PARTS = {
    "net": "src/net/",
    "membership": "src/membership/",
    "control": "src/control/",
    "fabric": "src/fabric/",
    "collectives": "src/collectives/",
    "expert_parallel": "src/expert_parallel/",
    "megakernel": "src/megakernel/",
    "bindings": "python/bindings/",
    "python": "python/tokenyard/",
}


def part_of(file: str) -> str | None:
    """Returns the part that a file belongs to, if any."""
    for part, folder in PARTS.items():
        # C++ of the package is built where torch is, by torch, and has no mutants.
        endings = (".py",) if part == "python" else (".cpp", ".hpp")
        if file.startswith(folder) and file.endswith(endings):
            return part
    return None


def sources(root: pathlib.Path = ROOT) -> list[str]:
    """Returns the files that git knows, new ones included."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [name for name in listing.stdout.splitlines() if (root / name).is_file()]
