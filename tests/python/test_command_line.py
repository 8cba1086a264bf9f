"""python -m tokenyard."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from programs import ROOT, run_python, start_python

import tokenyard


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "tokenyard", *arguments)


def test_help_names_the_commands() -> None:
    done = run()
    assert done.returncode == 0
    assert "doctor" in done.stdout


def test_version() -> None:
    assert run("--version").stdout == f"tokenyard {tokenyard.__version__}\n"


def test_doctor_says_what_works_here() -> None:
    done = run("doctor")
    assert done.returncode == 0, done.stderr
    assert "host" in done.stdout
    assert "nvlink" in done.stdout
    assert "each rank received" in done.stdout
    begins = done.stdout.index("what to do")
    assert begins > done.stdout.index("self-test"), "it comes last"
    assert "  rdma " in done.stdout[begins:]


def test_doctor_for_programs() -> None:
    found = json.loads(run("doctor", "--json", "--no-self-test").stdout)
    fields = {"version", "system", "toolkit", "driver", "gpus", "fabrics", "self_tests"}
    assert set(found) == fields
    assert found["version"] == tokenyard.__version__
    assert found["self_tests"] == []
    works = {fabric["name"]: fabric["works"] for fabric in found["fabrics"]}
    assert any(works.values()), works
    for fabric in found["fabrics"]:
        assert set(fabric) == {"name", "works", "why", "remedy"}
        assert fabric["why"]
        assert fabric["works"] or fabric["remedy"]


def test_the_self_test_has_a_rate_for_programs_too() -> None:
    tests = json.loads(run("doctor", "--json").stdout)["self_tests"]
    assert tests[0]["device"] == "host"
    assert tests[0]["error"] == ""
    assert min(tests[0]["dispatch_bytes_per_second"], tests[0]["combine_bytes_per_second"]) > 0


def test_the_page_names_the_keys() -> None:
    page = (ROOT / "docs" / "jobs.md").read_text()
    found = json.loads(run("doctor", "--json").stdout)
    listed = [found, *found["gpus"], *found["fabrics"], *found["self_tests"]]
    for key in {key for each in listed for key in each}:
        assert f"`{key}`" in page, key


def test_who_reads_no_more_of_the_doctor_is_not_answered_by_a_traceback() -> None:
    command = [sys.executable, "-m", "tokenyard", "doctor", "--json"]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as doctor:
        assert doctor.stdout is not None
        assert doctor.stderr is not None
        doctor.stdout.close()
        assert doctor.stderr.read() == ""
        assert doctor.wait(60) == 0


@pytest.mark.parametrize(
    ("redirection", "complaint"),
    [(">/dev/full", "standard output: No space left"), (">&-", "standard output is closed")],
)
def test_a_doctor_that_cannot_be_heard_says_so(redirection: str, complaint: str) -> None:
    command = ["sh", "-c", f'"$@" {redirection}', "sh", sys.executable, "-m", "tokenyard", "doctor"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_store_is_served_until_it_is_ended(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("known to all ranks\n")
    command = [sys.executable, "-m", "tokenyard", "store", "--secret-file", str(secret)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        options = dict(secret="known to all ranks", rank=0, size=1)
        with tokenyard.Collectives.connect(address, **options) as job:
            job.world().barrier().wait()
        with pytest.raises(tokenyard.Error):
            tokenyard.Collectives.connect(address, **(options | dict(secret="guessed", timeout=3)))
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0


def test_a_store_with_wrong_arguments_says_so_in_a_line(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    for wrong, complaint in ((["--port", "99999"], "port"), ([], "secret")):
        secret.write_text("known to all ranks" if wrong else "\n")
        done = run("store", "--secret-file", str(secret), *wrong)
        assert done.returncode == 1
        assert complaint in done.stderr
        assert "Traceback" not in done.stderr


def test_a_store_without_a_secret_is_refused(tmp_path: Path) -> None:
    done = run("store", "--secret-file", str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert "nowhere" in done.stderr


def test_ctrl_c_ends_a_store_that_waits_for_its_secret() -> None:
    pipes = dict(stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    with start_python("-m", "tokenyard", "store", "--secret-file", "-", **pipes) as server:
        assert server.stdin is not None
        server.stdin.write("the beginning of a line")
        server.stdin.flush()
        while any(fcntl.ioctl(server.stdin, termios.FIONREAD, bytes(4))):
            assert server.poll() is None
            time.sleep(0.01)  # Until it is read: now it waits for the rest.
        server.send_signal(signal.SIGINT)
        try:
            assert server.wait(20) != 0
        finally:
            server.kill()


@pytest.mark.parametrize("wrong", ["docter", "--doctor"])
def test_a_wrong_command_is_refused(wrong: str) -> None:
    assert run(wrong).returncode == 2
