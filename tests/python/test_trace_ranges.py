"""NVTX ranges: a listener that NVTX loads writes down the names of the calls that it hears."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

import _tokenyard

HERE = Path(__file__).parent
TOOLKIT = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
has_header = (TOOLKIT / "nvtx3" / "nvToolsExt.h").exists()

CALLS = """
import numpy as np, ml_dtypes, tokenyard

x = np.ones((4, 64), ml_dtypes.bfloat16)
ids = np.array([[0], [1], [2], [3]])
weights = np.ones((4, 1), np.float32)

def exchange(world):
    many = tokenyard.ExpertParallel(world, experts=4, hidden=64, topk=1, tokens_max=4)
    received = many.dispatch(x, ids)
    many.group_by_expert(received)
    many.combine(received.x, received)
    many.dispatch_by_expert(x, ids)
    many.set_expert_map([3, 2, 1, 0])
    many.wait()
    few = tokenyard.LowLatency(world, experts=4, hidden=64, topk=1, tokens_max=4)
    rows = few.dispatch(x, ids, rows="bf16", return_recv_hook=True)
    rows.hook()
    few.combine(rows.x, rows, weights)
    few.wait()
    few.close()

tokenyard.launch(exchange, ranks=1)

with tokenyard.StoreServer(secret="of the test") as store:
    with tokenyard.Collectives.connect(store.address, secret="of the test", rank=0, size=1) as job:
        group, ones = job.world(), np.ones(3)
        group.all_reduce(ones).wait()
        group.broadcast(ones, root=0).wait()
        group.barrier().wait()
"""

HEARD = {
    *(
        "ExpertParallel." + call
        for call in (
            "dispatch",
            "group_by_expert",
            "combine",
            "dispatch_by_expert",
            "set_expert_map",
            "wait",
        )
    ),
    *("LowLatency." + call for call in ("dispatch", "receive", "combine", "wait", "close")),
    *("Group." + call for call in ("all_reduce", "broadcast", "barrier")),
    "Work.wait",
}


@pytest.mark.skipif(not has_header, reason="the toolkit's NVTX header is not here")
def test_every_call_is_a_range_of_its_name(tmp_path: Path) -> None:
    assert _tokenyard.trace_ranges, "the header is here, but the module was built without ranges"
    compiler = shutil.which("c++") or pytest.skip("no compiler for the listener")
    library, heard = tmp_path / "listener.so", tmp_path / "ranges"
    options = ["-std=c++20", "-shared", "-fPIC", f"-I{TOOLKIT}", "-o", str(library)]
    subprocess.run([compiler, *options, str(HERE / "nvtx_listener.cpp")], check=True)
    listening = os.environ | {"NVTX_INJECTION64_PATH": str(library)}
    subprocess.run([sys.executable, "-c", CALLS], check=True, env=listening, cwd=tmp_path)
    lines = heard.read_text().splitlines()
    names = {line[1:] for line in lines if line.startswith("+")}
    assert names == {f"tokenyard {name}" for name in HEARD}
    assert lines.count("-") == len(lines) - lines.count("-"), "every range ends"


def test_the_page_lists_the_names_in_the_code() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    listed = set()
    for kind, calls in re.findall(r"^\| `(\w+)`[^|]*\| ((?:`\.\w+` ?)+)\|", page, re.MULTILINE):
        listed |= {kind + call for call in re.findall(r"`(\.\w+)`", calls)}
    code = {
        name
        for source in (ROOT / "src").rglob("*.cpp")
        for name in re.findall(r'TraceRange range\("([\w.]+)"\)', source.read_text())
    }
    assert listed == code
