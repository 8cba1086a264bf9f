"""The built programs of bench/: the arguments they reject, and how small sizes may be."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import hosts_of_a_test

import _tokenyard

SMALL = ["--device", "host", "--calls", "1", "--sms", "2", "--tokens", "8", "--hidden", "64"]


def bench(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    built = Path(_tokenyard.__file__).parents[2] / "bench" / name
    if not built.exists():
        pytest.skip(f"{name} is not built")
    return subprocess.run(
        [built, *arguments], capture_output=True, text=True, check=False, timeout=300
    )


def complaint_of(name: str, *arguments: str) -> str:
    done = bench(name, *arguments)
    assert (done.returncode, done.stdout) == (1, ""), done
    return done.stderr


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("--topk 2 --experts 8 --ranks 3", "experts: expected a multiple of 3 ranks, got 8\n"),
        (
            "--topk 99 --experts 8 --ranks 2",
            "topk: expected at most experts = 8, got 99\n",
        ),
        ("--topk 257 --experts 512 --ranks 2", "topk: expected 1 to 256, got 257\n"),
    ],
)
def test_a_throughput_that_cannot_be(wrong: str, complaint: str) -> None:
    """Rejected before tokens are drawn, which relies on it."""
    assert complaint_of("throughput", *SMALL, *wrong.split()) == complaint


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("--ranks 3", "experts: expected a multiple of 3 ranks, got 8\n"),
        ("--topk 2,9", "topk: expected at most experts = 8, got 9\n"),
        ("--hidden 48,64", "hidden: expected a multiple of 32 from 32 to 1048576, got 48\n"),
    ],
)
def test_a_low_latency_that_cannot_be(wrong: str, complaint: str) -> None:
    assert complaint_of("low_latency", "--smoke", *wrong.split()) == complaint


@pytest.mark.parametrize(
    ("name", "wrong", "complaint"),
    [
        ("throughput", "--skew nan", "no number from 0 to 100"),
        ("throughput", "--tokens 99999999999999999999", "no number from 0 to 1048576"),
        ("low_latency", "--zipf nan", "no number from 0 to 100"),
        ("low_latency", "--tokens 8,-1", "no number from 0 to 1048576"),
        ("megakernel", "--hops 1e3", "no number from 1 to 10000"),
        ("megakernel_decode", "--tokens 18446744073709551617", "no number from 1 to 1000"),
    ],
)
def test_a_number_that_is_none_is_refused_with_2(name: str, wrong: str, complaint: str) -> None:
    done = bench(name, *wrong.split())
    assert done.returncode == 2
    assert complaint in done.stderr


def test_results_that_cannot_be_written_are_told() -> None:
    complaint = bench("throughput", "--smoke", "--cases", "cached", "--output", "/nowhere/x.json")
    assert complaint.returncode == 1
    assert complaint.stderr.endswith("--output: cannot write /nowhere/x.json\n")


def test_cases_that_there_are_not() -> None:
    complaint = complaint_of("throughput", "--smoke", "--cases", "nothing")
    assert complaint.startswith('cases: expected a part of "dispatch bf16 uncached", "')
    assert complaint.endswith(', got "nothing"\n')


def test_a_small_bench_is_of_the_shape_that_is_asked_for() -> None:
    shape = ["--ranks", "4", "--tokens", "5", "--cases", "uncached"]
    done = bench("throughput", "--smoke", *shape)
    assert done.returncode == 0, done.stderr
    rows = [line.split()[-7:-3] for line in done.stdout.splitlines()[1:]]
    assert rows == [["4", "5", "256", "2"]] * 2


@pytest.mark.parametrize("name", ["throughput", "low_latency", "megakernel", "megakernel_decode"])
def test_without_a_gpu_it_says_what_to_do(name: str) -> None:
    if _tokenyard.doctor().gpus:
        pytest.skip("there is a GPU")
    complaint = complaint_of(name)
    assert "no GPU is found here" in complaint
    assert "--device host" in complaint
    assert "--smoke" in complaint


def test_a_search_prints_the_options_that_it_found() -> None:
    done = bench("across_hosts", "--smoke", "--tune", "--tokens", "8")
    assert done.returncode == 0, done.stderr
    tried = [line.split() for line in done.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert ["2", "chosen", "chosen"] in [line[:3] for line in tried], "what is chosen"
    best = re.search(r"best: tokenyard.ExpertParallel\(world, ..., sms=(\d+)", done.stdout)
    assert best is not None, done.stdout
    assert len(tried) >= 6, "a search tries each value of each option"


def test_hosts_whose_cards_are_paced_are_measured_beside_sockets(tmp_path: Path) -> None:
    with hosts_of_a_test(2, 1) as hosts:  # Skips the test where there are none.
        hosts.slow_down(0, 80.0)
    bench_folder = Path(__file__).parents[2] / "bench"
    out = tmp_path / "paced_hosts.json"
    subprocess.run(
        [sys.executable, bench_folder / "paced_hosts.py", "--smoke", "--out", out],
        check=True,
        timeout=120,
    )
    rows = json.loads(out.read_text())["rows"]
    assert [row["case"] for row in rows] == [
        "dispatch bf16 2 hosts 10 MB/s",
        "combine bf16 2 hosts 10 MB/s",
    ]
    # Of 2 ranks with 16 tokens each for one other host, of 512 bytes: at most those cross.
    assert all(0 < row["floor"] <= 2 * 16 * 512 / 10 for row in rows)
    assert all(row["ours"]["median"] > 0 and row["peer"]["median"] > 0 for row in rows)
