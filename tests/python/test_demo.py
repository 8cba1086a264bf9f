"""The demo at a small size: its output, and its errors for wrong arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from programs import EXAMPLES, assert_refused, run_python

pytest.importorskip("rich")
pytest.importorskip("matplotlib")


def demo(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python(EXAMPLES / "moe_layer.py", "--out", out, *arguments)


@pytest.mark.parametrize(
    ("ranks", "arguments"),
    [
        (1, []),
        (3, ["--experts", "12", "--top-k", "5", "--seed", "7"]),
        (4, ["--processes"]),
    ],
)
def test_it_writes_what_it_promises(tmp_path: Path, ranks: int, arguments: list[str]) -> None:
    sizes = ["--ranks", str(ranks), "--tokens", "40", "--hidden", "64"]
    done = demo(tmp_path, *sizes, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Right" in done.stdout

    report = json.loads((tmp_path / "report.json").read_text())
    assert report["ok"] is True
    assert report["ranks"] == ranks
    assert report["tokens"] == [40] * ranks
    assert len(report["rows_received"]) == ranks
    assert sum(report["rows_received"]) >= 40 * ranks  # Every token goes somewhere.
    assert 0 < report["max_error"] <= report["tolerance"]
    assert set(report["phases_ms"]) == {"gate", "dispatch", "experts", "combine"}

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == set(range(ranks))
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in spans)

    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("ranks", "hosts", "arguments"), [(2, 2, ["--processes"]), (4, 2, []), (6, 3, ["--top-k", "5"])]
)
def test_rows_between_hosts_are_counted_once_per_host(
    tmp_path: Path, ranks: int, hosts: int, arguments: list[str]
) -> None:
    sizes = ["--ranks", str(ranks), "--hosts", str(hosts), "--tokens", "40", "--hidden", "64"]
    done = demo(tmp_path, *sizes, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "between hosts, each once per host" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["ok"], report["hosts"]) == (True, hosts)
    rows = report["rows_between_hosts"]
    for source, row in enumerate(rows):
        for target, count in enumerate(row):
            assert source == target or count <= 40 * ranks // hosts
    # Hosts of one rank get as many rows as their ranks.
    assert (sum(map(sum, rows)) == sum(report["rows_received"])) == (ranks == hosts)
    assert (tmp_path / "hosts.png").read_bytes().startswith(b"\x89PNG")


def test_any_text_will_do(tmp_path: Path) -> None:
    text = tmp_path / "words.txt"
    text.write_text("Viel Lärm um nichts: naïve café, a test.", encoding="utf-8")
    done = demo(tmp_path, "--text", str(text), "--tokens", "20", "--hidden", "32")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--ranks", "0"], "--ranks"),
        (["--ranks", "3", "--experts", "4"], "multiple of the 3 ranks"),
        (["--hosts", "3"], "divisor of the 4 ranks"),
        (["--hosts", "0"], "divisor of the 4 ranks"),
        (["--hidden", "12"], "multiple of 8"),
        (["--top-k", "99"], "--top-k"),
        (["--tokens", "many"], "--tokens"),
        (["--text", "no/such/file"], "no/such/file"),
        (["--text", sys.executable], "is not UTF-8 text"),
        (["--out", "/dev/null/out"], "/dev/null/out"),
    ],
)
def test_wrong_arguments_get_one_sentence(
    tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    done = demo(tmp_path, *arguments)
    assert_refused(done, complaint)
