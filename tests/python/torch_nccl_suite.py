"""torch's own tests of backend nccl, pointed at backend tokenyard, on two GPUs or more.

    python tests/python/torch_nccl_suite.py [--only REGEX] [--backend nccl] [--out FILE]
    python tests/python/torch_nccl_suite.py --file test_c10d_nccl.py   # a copy of torch's source

The tests are torch.testing's DistributedTest with BACKEND=nccl, and test_c10d_nccl.py of the
installed version of torch, which is fetched, or given by --file. They name nccl, so here nccl
stands for tokenyard; --backend nccl runs them unchanged, for comparison. A test whose source uses
what only NCCL's own class has is not run, and says what (`ONLY_NCCL`). Prints which tests pass, are
skipped, or fail and why; the exit status is the number of failures.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import multiprocessing
import os
import re
import sys
import tempfile
import unittest
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torch_suite import Listing

SOURCE = "https://raw.githubusercontent.com/pytorch/pytorch/{}/test/distributed/test_c10d_nccl.py"
ONLY_NCCL = {
    r"ProcessGroupNCCL|_get_backend\(.*\)\._|HeartbeatMonitor": "NCCL's own class",
    r"TORCH_NCCL|NCCL_[A-Z]": "NCCL's environment variables",
    r"nccl_config|\.config\.|_comm_ptr|comm_split|perform_nocolor_split": "NCCL's communicators",
    r"_dump_nccl_trace|fr_trace|flight_recorder|nccl_trace": "NCCL's flight recorder",
    r"torch\.cuda\.nccl|ncclCommRegister|register_mem_pool|deregister_mem_pool": "NCCL's library",
    r"torchcomms|_BackendWrapper": "the library torchcomms",
    r"sparse": "sparse tensors, which are refused",
}
"""Marks of a test of NCCL itself in its source, with the reason why it is not run."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=0, metavar="N", help="processes (GPUs)")
    parser.add_argument("--only", default="", metavar="REGEX", help="tests whose name matches")
    parser.add_argument("--backend", choices=("tokenyard", "nccl"), default="tokenyard")
    parser.add_argument("--file", type=Path, metavar="FILE", help="torch's test_c10d_nccl.py")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the list, as text")
    return parser.parse_args()


def nccl_is_tokenyard() -> None:
    """Makes groups of nccl groups of tokenyard, under nccl's name."""
    import torch.distributed.distributed_c10d as c10d

    import tokenyard.torch  # noqa: F401  Registers the backend.

    genuine: Callable[..., Any] = c10d._new_process_group_helper

    def helper(size: int, rank: int, ranks: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
        ours = "nccl" in str(backend) or str(backend) == "undefined"
        if ours:
            kwargs.pop("backend_options", None)
        made = genuine(size, rank, ranks, "tokenyard" if ours else backend, *args, **kwargs)
        group, store = made
        if ours and group in c10d._world.pg_map:
            c10d._world.pg_map[group] = ("nccl", store)
        return made

    c10d._new_process_group_helper = helper
    c10d.is_nccl_available = lambda: True


def source_of_torch(folder: str) -> Path:
    """Fetches the file of the installed version."""
    import torch

    version = torch.__version__.partition("+")[0]
    tag = f"v{version}" if re.fullmatch(r"[\d.]+", version) else torch.version.git_version
    path = Path(folder) / "test_c10d_nccl.py"
    with urllib.request.urlopen(SOURCE.format(tag), timeout=60) as answer:
        path.write_bytes(answer.read())
    return path


def module_at(path: Path) -> ModuleType:
    described = importlib.util.spec_from_file_location("torch_test_c10d_nccl", path)
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    sys.modules[described.name] = module
    described.loader.exec_module(module)
    return module


def why_not(test: unittest.TestCase) -> str | None:
    """Returns why a test is one of NCCL itself; None if it is not."""
    function = inspect.unwrap(getattr(test, test._testMethodName))
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        return None
    return next((why for pattern, why in ONLY_NCCL.items() if re.search(pattern, text)), None)


def cases_of(suite: Any) -> Iterator[unittest.TestCase]:
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from cases_of(one)
        else:
            yield one


def shared_tests() -> Iterator[unittest.TestCase]:
    from torch.testing._internal.distributed import distributed_test

    class Nccl(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            # Children need the patch of this process, which has not used CUDA.
            self._start_processes(multiprocessing.get_context("fork").Process)

    for name in unittest.defaultTestLoader.getTestCaseNames(Nccl):
        yield Nccl(name)


def own_tests(path: Path) -> Iterator[unittest.TestCase]:
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    MultiProcessTestCase._spawn_processes = MultiProcessTestCase._fork_processes
    yield from cases_of(unittest.defaultTestLoader.loadTestsFromModule(module_at(path)))


def main() -> int:
    import torch

    chosen = parse()
    ranks = chosen.ranks or torch.cuda.device_count()
    if ranks < 2:
        print("needs two GPUs")
        return 1
    # distributed_test reads these when it is imported.
    os.environ.update(BACKEND="nccl", WORLD_SIZE=str(ranks), INIT_METHOD="env://")
    listing = Listing()
    not_run: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TEMP_DIR"] = folder
        for name in ("barrier", "test_dir", "init_dir"):
            (Path(folder) / name).mkdir()
        if chosen.backend == "tokenyard":
            nccl_is_tokenyard()
        path = chosen.file or source_of_torch(folder)
        for test in (*shared_tests(), *own_tests(path)):
            name = test.id().rpartition(".")[2]
            if not re.search(chosen.only, name):
                continue
            why = why_not(test) if chosen.backend == "tokenyard" else None
            if why is None:
                test.run(listing)
            else:
                not_run[name] = why
                print(f"not run  {name} {why}", flush=True)
    counts = {
        kind: sum(outcome == kind for outcome, _ in listing.lines.values())
        for kind in ("passed", "skipped", "differs", "failed")
    }
    total = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    total += f", {len(not_run)} not run"
    print(total)
    if chosen.out is not None:
        lines = [f"{outcome:8} {name}  {why}" for name, (outcome, why) in listing.lines.items()]
        lines += [f"not run  {name}  {why}" for name, why in not_run.items()]
        chosen.out.write_text("\n".join([total, "", *sorted(lines)]) + "\n")
    return counts["failed"]


if __name__ == "__main__":
    sys.exit(main())
