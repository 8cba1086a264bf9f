"""torch's own tests of backend nccl, pointed at backend tokenyard, on two GPUs or more.

    python tests/python/torch_nccl_suite.py [--only REGEX] [--backend nccl] [--out FILE]
    python tests/python/torch_nccl_suite.py --file test_c10d_nccl.py   # a copy of torch's source

The tests are torch.testing's DistributedTest with BACKEND=nccl, and test_c10d_nccl.py of the
installed version of torch, which is fetched, or given by --file; test_c10d_common.py lies beside
it. They name nccl, so here nccl stands for tokenyard; --backend nccl runs them unchanged, for
comparison. A test whose source uses what only NCCL's own class has is not run, and says what
(`ONLY_NCCL`). Several processes share the tests (--shards), whose ranks are forked from them: none
of these may use CUDA. Ends after --seconds, and says which tests it has not reached. Prints which
tests pass, are skipped, or fail and why; the exit status is 1 if any fails.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torch_suite import EXPECTED, Listing, rename_events

SOURCE = "https://raw.githubusercontent.com/pytorch/pytorch/{}/test/distributed/{}"
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
ALL_RANKS = "the first call on a CUDA tensor waits for all ranks of the group"
OBJECTS = "objects travel on the CPU; torch hashes them as CUDA's in a group that is called nccl"
DIFFERS = {
    "test_all_gather_object_default_pg": OBJECTS,
    "test_all_gather_object_subgroup": OBJECTS,
    "test_batch_isend_irecv_self_nccl": ALL_RANKS,
    "test_monitored_barrier_allreduce_hang": ALL_RANKS,
}
"""Tests of features in which this backend differs, with the difference."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=0, metavar="N", help="processes (GPUs)")
    parser.add_argument("--only", default="", metavar="REGEX", help="tests whose name matches")
    parser.add_argument("--backend", choices=("tokenyard", "nccl"), default="tokenyard")
    parser.add_argument("--file", type=Path, metavar="FILE", help="torch's test_c10d_nccl.py")
    parser.add_argument("--without-file", action="store_true", help="DistributedTest alone")
    parser.add_argument("--shards", type=int, default=8, metavar="N", help="tests at a time (8)")
    parser.add_argument("--each", type=int, default=30, metavar="S", help="seconds of a test (30)")
    parser.add_argument("--seconds", type=int, default=240, metavar="S", help="of all (240)")
    parser.add_argument("--list", action="store_true", help="names the tests, runs none")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the list, as text")
    parser.add_argument("--shard", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
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
    """Fetches the files of the installed version."""
    import torch

    version = torch.__version__.partition("+")[0]
    tag = f"v{version}" if re.fullmatch(r"[\d.]+", version) else torch.version.git_version
    for name in ("test_c10d_common.py", "test_c10d_nccl.py"):
        with urllib.request.urlopen(SOURCE.format(tag, name), timeout=60) as answer:
            (Path(folder) / name).write_bytes(answer.read())
    return Path(folder) / "test_c10d_nccl.py"


def module_at(path: Path) -> ModuleType:
    described = importlib.util.spec_from_file_location("torch_test_c10d_nccl", path)
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    sys.path.insert(0, str(path.parent))  # It imports test_c10d_common.
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


def shared_tests(backend: str) -> Iterator[unittest.TestCase]:
    from torch.testing._internal.distributed import distributed_test

    class Nccl(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            # Children need the patch of this process, which has not used CUDA.
            self._start_processes(multiprocessing.get_context("fork").Process)

    rename_events(backend, "nccl")
    for name in unittest.defaultTestLoader.getTestCaseNames(Nccl):
        yield Nccl(name)


def own_tests(path: Path) -> Iterator[unittest.TestCase]:
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    MultiProcessTestCase._spawn_processes = MultiProcessTestCase._fork_processes
    yield from cases_of(unittest.defaultTestLoader.loadTestsFromModule(module_at(path)))


def keep_from_cuda(gpus: int) -> None:
    """Answers questions about GPUs in CUDA's place: what is forked from its user cannot use it."""
    import torch
    import torch.utils._triton

    torch.cuda.is_available = torch.accelerator.is_available = lambda: True
    torch.cuda.device_count = torch.accelerator.device_count = lambda: gpus
    torch.cuda.is_bf16_supported = lambda *_, **__: True
    # torch's tests would import these, which initialize CUDA.
    for name in ("numba", "cupy", "cuda", "cuda.bindings"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    # They import this one late; it asks CUDA whether Triton can be used.
    asks = torch.utils._triton.has_triton
    torch.utils._triton.has_triton = lambda: False
    importlib.import_module("torch.testing._internal.common_device_type")
    torch.utils._triton.has_triton = asks


def require_forks() -> None:
    """Raises unless what is forked from this process can use CUDA."""
    import torch

    child = multiprocessing.get_context("fork").Process(target=torch.cuda.init)
    child.start()
    child.join()
    assert child.exitcode == 0, "an import has initialized CUDA, so no rank can be forked"


class Results(Listing):
    """Writes every outcome to a file, too, and ends a test of this process that takes too long."""

    def __init__(self, path: Path, seconds: int) -> None:
        super().__init__()
        self._file = path.open("a", buffering=1)
        self._seconds = seconds
        signal.signal(signal.SIGALRM, self._late)

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        # torch ends tests of several processes sooner.
        signal.alarm(self._seconds + 15)

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        signal.alarm(0)
        super().stopTest(test)

    def tell(self, name: str, outcome: str, why: str) -> None:
        self._file.write(json.dumps([name, outcome, why]) + "\n")

    def _note(self, test: unittest.TestCase, outcome: str, why: str) -> None:
        super()._note(test, outcome, why)
        name = test.id().rpartition(".")[2]
        self.tell(name, *self.lines[name])

    def _late(self, *_: object) -> None:
        raise TimeoutError(f"Error: not done after {self._seconds + 15} s")


def run_shard(chosen: argparse.Namespace) -> int:
    """Runs every `shards`-th test. All shards know all tests, in the same order."""
    # torch reads these when it or its tests are imported.
    os.environ.update(
        BACKEND="nccl",
        WORLD_SIZE=str(chosen.ranks),
        INIT_METHOD="env://",
        PYTORCH_NVML_BASED_CUDA_CHECK="1",
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(chosen.each),
    )
    results = Results(chosen.results, chosen.each)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TEMP_DIR"] = folder
        for name in ("barrier", "test_dir", "init_dir"):
            (Path(folder) / name).mkdir()
        keep_from_cuda(chosen.ranks)
        if chosen.backend == "tokenyard":
            nccl_is_tokenyard()
            EXPECTED.update(DIFFERS)
        tests = list(shared_tests(chosen.backend))
        from torch.testing._internal import common_distributed

        common_distributed.TIMEOUT_OVERRIDE.clear()
        try:
            if not chosen.without_file:
                tests += own_tests(chosen.file)
        except Exception as error:  # Of another version of torch.
            results.tell("test_c10d_nccl.py", "failed", f"cannot be imported: {error!r}")
        if not chosen.list:
            require_forks()
        number = 0
        for test in tests:
            name = test.id().rpartition(".")[2]
            if not re.search(chosen.only, name):
                continue
            number += 1
            if number % chosen.shards != chosen.shard:
                continue
            why = why_not(test) if chosen.backend == "tokenyard" else None
            if why is not None:
                results.tell(name, "not run", why)
            elif chosen.list:
                results.tell(name, "listed", "")
            else:
                results.tell(name, "not reached", "")
                test.run(results)
    return 0


def outcomes_in(paths: list[Path]) -> dict[str, tuple[str, str]]:
    outcomes: dict[str, tuple[str, str]] = {}
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else ():
            with contextlib.suppress(json.JSONDecodeError):  # The last one may be cut.
                name, outcome, why = json.loads(line)
                outcomes[name] = (outcome, why)
    return outcomes


def run_shards(chosen: argparse.Namespace, folder: str) -> dict[str, tuple[str, str]]:
    given = ["--ranks", str(chosen.ranks), "--only", chosen.only, "--backend", chosen.backend]
    given += ["--shards", str(chosen.shards), "--each", str(chosen.each)]
    given += ["--without-file"] if chosen.without_file else ["--file", str(chosen.file.resolve())]
    given += ["--list"] if chosen.list else []
    files = [Path(folder) / f"{shard}.jsonl" for shard in range(chosen.shards)]
    shards = [
        subprocess.Popen(
            [sys.executable, __file__, *given, "--shard", str(shard), "--results", str(file)],
            start_new_session=True,
        )
        for shard, file in enumerate(files)
    ]
    end = time.monotonic() + chosen.seconds
    try:
        for shard in shards:
            with contextlib.suppress(subprocess.TimeoutExpired):
                shard.wait(max(end - time.monotonic(), 0))
    finally:
        for shard in shards:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shard.pid, signal.SIGKILL)
            shard.wait()
    outcomes = outcomes_in(files)
    for number, shard in enumerate(shards):
        if shard.returncode not in (0, -signal.SIGKILL):
            outcomes[f"shard {number}"] = ("failed", f"ended with status {shard.returncode}")
    return outcomes


def main() -> int:
    import torch

    chosen = parse()
    if chosen.shard is not None:
        return run_shard(chosen)
    chosen.ranks = chosen.ranks or torch.cuda.device_count()
    if chosen.ranks < 2:
        print("needs two GPUs")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        if chosen.backend == "tokenyard":
            from tokenyard.torch import build

            build.load()  # Compiles it once, for all processes.
        if not chosen.without_file:
            chosen.file = chosen.file or source_of_torch(folder)
        outcomes = run_shards(chosen, folder)
    kinds = ("passed", "skipped", "differs", "failed", "not reached", "not run", "listed")
    counts = {kind: sum(outcome == kind for outcome, _ in outcomes.values()) for kind in kinds}
    total = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    lines = [f"{outcome:12} {name}  {why}" for name, (outcome, why) in outcomes.items()]
    text = "\n".join([*sorted(lines), "", total or "no tests"])
    print(text)
    if chosen.out is not None:
        chosen.out.write_text(text + "\n")
    return int(counts["failed"] > 0 or not outcomes)


if __name__ == "__main__":
    sys.exit(main())
