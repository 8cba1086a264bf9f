"""Lists the public Python names by page; mkdocstrings renders their docstrings.

The names are read from `__all__` without an import, so no built module is needed. A name of
`tokenyard.__all__` that has no page raises ValueError.
"""

from __future__ import annotations

import ast
from pathlib import Path

PAGES = {
    "jobs": ("Jobs", ["connect", "from_env", "from_torch", "Job"]),
    "worlds": (
        "Worlds",
        [
            "launch", "World", "Topology", "PeerReach", "FailedRank", "NetworkOptions",
            "NetworkPath", "PeerTimes",
        ],
    ),
    "expert_parallel": (
        "Dispatch and combine",
        [
            "ExpertParallel", "Received", "Combined", "Route", "ExpertRows", "DispatchMemory",
            "Rings", "spread_lost_experts",
        ],
    ),
    "low_latency": (
        "Low latency",
        ["LowLatency", "LowLatencyReceived", "LowLatencyCombined", "RefusedBatch"],
    ),
    "collectives": (
        "Collectives",
        ["Collectives", "Group", "Work", "StoreServer", "CollectivesCounters"],
    ),
    "device_collectives": ("Collectives on CUDA tensors", ["DeviceCollectives"]),
    "metrics": ("Metrics", ["prometheus_text"]),
    "errors": (
        "Errors",
        [
            "Error", "InvalidArgument", "Unsupported", "PeerLost", "PeerTimeout", "ProcessDied",
            "OperationAborted", "QuorumLost", "Fenced", "OutOfTouch", "Cancelled",
            "NetworkFault", "OsError", "InternalError",
        ],
    ),
}  # fmt: skip
"""Titles and names of the pages over `tokenyard` itself."""
DEFINED = {"tokenyard.launch": "tokenyard.world.launch.launch"}
"""Names that a module of the same name hides from griffe, and where they are defined."""
MODULES = ("moe", "torch", "megakernel")
"""Public modules, a page each."""


def names_of(file: Path) -> list[str]:
    """Returns `__all__` of a module, sorted."""
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(statement.value)]
    raise ValueError(f"{file} has no __all__")


def pages(package_folder: Path) -> dict[str, str]:
    """Returns the pages by uri."""
    package = package_folder / "tokenyard"
    public = set(names_of(package / "__init__.py")) - {"__version__"}
    placed = {name for _, names in PAGES.values() for name in names}
    if public != placed:
        raise ValueError(f"names without a page, or pages without a name: {public ^ placed}")
    made = {
        f"reference/python/{page}.md": _page(title, [f"tokenyard.{name}" for name in names])
        for page, (title, names) in PAGES.items()
    }
    for module in MODULES:
        whole = f"tokenyard.{module}"
        names = [f"{whole}.{name}" for name in names_of(package / module / "__init__.py")]
        head = f"::: {whole}\n    options:\n      members: []\n      show_root_heading: false\n"
        made[f"reference/python/{module}.md"] = _page(whole, names, head)
    return made


def _page(title: str, names: list[str], head: str = "") -> str:
    return "\n".join([f"# {title}\n", head, *(_entry(name) for name in names)])


def _entry(name: str) -> str:
    if name not in DEFINED:
        return f"::: {name}\n"
    options = f"heading: {name}\n      toc_label: {name.rpartition('.')[2]}"
    return f"::: {DEFINED[name]}\n    options:\n      {options}\n"
