"""A job's secret comes from an argument, a file or the environment, and shows nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from programs import run_python
from ranks import file_store, ranks_of, results_of, world_alone

import tokenyard
from tokenyard import membership
from tokenyard.secret import LONGEST, SHORTEST, secret_in_environment, secret_of
from tokenyard.world.rendezvous import HeldPort

try:
    import torch.distributed as dist
except ModuleNotFoundError:
    dist = None  # type: ignore[assignment]

SECRET = "9f2c61d07b5e4a83-of-the-tests"
OTHER = "0123456789abcdef-of-the-tests"


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENYARD_SECRET", raising=False)
    monkeypatch.delenv("TOKENYARD_SECRET_FILE", raising=False)


def file_with(folder: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path = folder / f"secret-{len(list(folder.iterdir()))}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


def refusal(call: Callable[[], Any]) -> tokenyard.InvalidArgument:
    """Returns the error of `call`, which must not show the secret, not even in its context."""
    with pytest.raises(tokenyard.InvalidArgument) as caught:
        call()
    error: BaseException | None = caught.value
    while error is not None:
        shown = [str(error), repr(error), repr(error.__dict__), repr(error.args)]
        assert not any(part in text for text in shown for part in (SECRET, SECRET[:8], OTHER))
        error = error.__context__
    return caught.value


def test_an_argument_comes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_with(tmp_path, f"{SECRET}\n")
    assert secret_in_environment() is None
    assert secret_of("s") == "s"
    assert secret_of(None, path) == SECRET
    assert secret_of(None, str(path)) == SECRET
    monkeypatch.setenv("TOKENYARD_SECRET", f" {OTHER} ")
    assert secret_of(None) == OTHER
    assert secret_of("s") == "s"
    assert secret_of(None, path) == SECRET
    monkeypatch.delenv("TOKENYARD_SECRET")
    monkeypatch.setenv("TOKENYARD_SECRET_FILE", str(path))
    assert secret_of(None) == SECRET
    monkeypatch.setenv("TOKENYARD_SECRET", SECRET)
    assert secret_of(None) == SECRET
    monkeypatch.setenv("TOKENYARD_SECRET", OTHER)
    error = refusal(lambda: secret_of(None))
    assert (error.argument, error.seen) == ("TOKENYARD_SECRET", "another one")
    assert "TOKENYARD_SECRET_FILE" in error.expected


def test_without_a_secret_the_error_says_how_to_make_one(tmp_path: Path) -> None:
    for call in (
        lambda: tokenyard.Collectives.connect(file_store(tmp_path), rank=0, size=1),
        lambda: tokenyard.Collectives.join(file_store(tmp_path), rank=0, size=1),
        lambda: tokenyard.StoreServer(),
    ):
        error = refusal(call)
        assert (error.argument, error.seen) == ("secret", "none of them")
        assert "TOKENYARD_SECRET_FILE" in error.expected
        assert "secrets.token_hex" in error.expected


@pytest.mark.parametrize("wrong", ["", b"9f2c61d07b5e4a83-of-the-tests", 7, [SECRET]])
def test_an_argument_that_is_no_secret(wrong: Any) -> None:
    assert refusal(lambda: secret_of(wrong)).argument == "secret"
    assert refusal(lambda: tokenyard.StoreServer(secret=wrong)).argument == "secret"
    path = Path("/nowhere")
    assert refusal(lambda: secret_of(SECRET, path)).argument == "secret_file"


@pytest.mark.parametrize("wrong", ["", " \n", SECRET[: SHORTEST - 1], "s" * (LONGEST + 1)])
def test_a_length_that_cannot_be(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENYARD_SECRET", wrong)
    error = refusal(secret_in_environment)
    assert (error.argument, error.seen) == ("TOKENYARD_SECRET", f"{len(wrong.strip())} bytes")
    path = file_with(tmp_path, wrong)
    assert refusal(lambda: secret_of(None, path)).argument == "secret_file"
    monkeypatch.delenv("TOKENYARD_SECRET")
    monkeypatch.setenv("TOKENYARD_SECRET_FILE", str(path))
    assert refusal(lambda: secret_of(None)).argument == "TOKENYARD_SECRET_FILE"


def test_lengths_that_can_be(tmp_path: Path) -> None:
    for length in (SHORTEST, LONGEST):
        assert secret_of(None, file_with(tmp_path, f"{'s' * length}\n")) == "s" * length
    assert secret_of(None, file_with(tmp_path, "\u00e9" * 8)) == "\u00e9" * 8  # 16 bytes.


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o660, 0o601, 0o777])
def test_a_file_that_others_may_open(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_with(tmp_path, SECRET, mode)
    monkeypatch.setenv("TOKENYARD_SECRET_FILE", str(path))
    error = refusal(secret_in_environment)
    assert error.argument == "TOKENYARD_SECRET_FILE"
    assert "chmod 600" in error.expected
    assert error.seen == f"{str(path)!r} with mode {mode:04o}"
    path.chmod(0o400)
    assert secret_in_environment() == SECRET


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_of_another_user(tmp_path: Path) -> None:
    path = file_with(tmp_path, SECRET)
    os.chown(path, 12345, -1)
    assert "of user 12345" in refusal(lambda: secret_of(None, path)).seen


def test_what_is_no_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for wrong in (pipe, tmp_path, Path("/dev/null")):  # The pipe has no writer to wait for.
        assert "regular file" in refusal(lambda wrong=wrong: secret_of(None, wrong)).expected
    missing = refusal(lambda: secret_of(None, tmp_path / "missing"))
    assert "No such file" in missing.seen
    for wrong_type in (1.5, "nul\0"):
        assert refusal(lambda wrong=wrong_type: secret_of(None, wrong)).argument == "secret_file"


def test_a_secret_that_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_with(tmp_path, SECRET.encode() + b"\xff")
    assert refusal(lambda: secret_of(None, path)).seen == "other bytes"
    monkeypatch.setenv("TOKENYARD_SECRET", SECRET + "\udcff")
    assert refusal(secret_in_environment).seen == "other bytes"


def connect_by_environment(say: Any, rank: int, size: int, store: str, path: str) -> list[int]:
    name, value = ("TOKENYARD_SECRET", SECRET) if rank else ("TOKENYARD_SECRET_FILE", path)
    os.environ[name] = value
    with tokenyard.Collectives.connect(store, rank=rank, size=size, timeout=60) as job:
        members = job.active_ranks()
        shown = [repr(job), str(job.counters()), *_command_lines()]
        assert not any(SECRET in text for text in shown)
        job.world().barrier().wait()  # A rank that has left is no member any more.
        return members


def test_ranks_with_one_secret_from_different_places(tmp_path: Path) -> None:
    path = file_with(tmp_path, SECRET)
    found = results_of(connect_by_environment, 2, file_store(tmp_path), str(path))
    assert found == [[0, 1], [0, 1]]


def connect_with_another(say: Any, rank: int, size: int, store: str) -> str:
    secret = OTHER if rank else SECRET
    with pytest.raises(tokenyard.Error) as caught:
        tokenyard.Collectives.connect(store, secret=secret, rank=rank, size=size, timeout=1.5)
    return f"{caught.value} {caught.value!r} {caught.value.__dict__}"


@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_an_error_of_another_secret_shows_neither(kind: str, tmp_path: Path) -> None:
    with tokenyard.StoreServer(secret=SECRET) as server:
        assert SECRET not in repr(server)
        store = server.address if kind == "tcp" else file_store(tmp_path)
        for text in results_of(connect_with_another, 2, store):
            assert SECRET not in text
            assert OTHER not in text


def join_a_world(say: Any, rank: int, size: int, port: int, secrets: list[str]) -> str:
    os.environ |= dict(RANK=str(rank), WORLD_SIZE=str(size), MASTER_PORT=str(port))
    os.environ["TOKENYARD_SECRET"] = secrets[rank]
    try:
        with tokenyard.World.from_env(timeout=3) as world:
            return str(world.all_gather(b"%d" % rank))
    except tokenyard.Error as error:
        return f"{type(error).__name__}: {error}"


def test_nobody_joins_a_world_without_its_secret() -> None:
    held = HeldPort()
    assert results_of(join_a_world, 2, held.number, [SECRET, SECRET]) == ["[b'0', b'1']"] * 2
    texts = results_of(join_a_world, 2, held.number, [SECRET, OTHER])
    held.release()
    assert [text.split(":")[0] for text in texts] == ["PeerTimeout"] * 2
    assert "rank 1 has not come" in texts[0]
    assert "secret" in texts[1]
    assert not any(secret in text for text in texts for secret in (SECRET, OTHER))


def test_ranks_without_one_share_a_file_of_their_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world_alone():
        pass  # Needs none.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    command = (
        "import sys, tokenyard\n"
        "store, rank = 'tcp://127.0.0.1:' + sys.argv[1], int(sys.argv[2])\n"
        "with tokenyard.connect(store, rank=rank, size=2, timeout=60) as job:\n"
        "    job.world().barrier()\n"
    )
    held = HeldPort()
    running = [
        subprocess.Popen([sys.executable, "-c", command, str(held.number), str(rank)])
        for rank in range(2)
    ]
    assert [process.wait(100) for process in running] == [0, 0]
    held.release()
    path = tmp_path / "tokenyard" / "secret"
    assert path.stat().st_mode & 0o7777 == 0o600
    assert path.parent.stat().st_mode & 0o7777 == 0o700
    assert len(path.read_text().strip()) == 64


def secret_and_what_others_see(world: tokenyard.World) -> tuple[str, bool]:
    world.barrier()
    secret = world._launched.secret
    shown = [*_command_lines(), *os.environ.values(), repr(world._launched)]
    world.barrier()
    return secret, any(secret in text for text in shown)


def test_a_launch_draws_a_secret_that_shows_nowhere() -> None:
    drawn = []
    for _ in range(2):
        (one, shown), (other, shown_too) = tokenyard.launch(
            secret_and_what_others_see, ranks=2, processes=True
        )
        assert one == other
        assert not shown
        assert not shown_too
        drawn.append(one)
    assert drawn[0] != drawn[1]
    assert all(len(secret) >= SHORTEST for secret in drawn)


def test_a_job_alone_has_a_secret_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def enter(*, secret: str, **others: Any) -> Any:
        drawn.append(secret)
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(membership, "_tokenyard", SimpleNamespace(Job=SimpleNamespace(enter=enter)))
    for _ in range(2):
        tokenyard.Collectives.alone(rank=0, size=2).close()
    assert len(set(drawn)) == 2
    assert all(len(secret) >= SHORTEST for secret in drawn)


def _command_lines() -> list[str]:
    lines = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                lines.append((process / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue  # It has ended.
    return lines


@pytest.mark.parametrize("way", ["file", "TOKENYARD_SECRET", "TOKENYARD_SECRET_FILE"])
def test_a_store_that_is_served(way: str, tmp_path: Path) -> None:
    path = file_with(tmp_path, SECRET)
    command = [sys.executable, "-m", "tokenyard", "store"]
    environment = dict(os.environ)
    if way == "file":
        command += ["--secret-file", str(path)]
    else:
        environment[way] = SECRET if way == "TOKENYARD_SECRET" else str(path)
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with subprocess.Popen(command, text=True, env=environment, **pipes) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            address = server.stdout.readline().strip()
            assert any("store" in line for line in _command_lines())
            assert not any(SECRET in line for line in _command_lines())
            with tokenyard.Collectives.connect(address, secret=SECRET, rank=0, size=1) as job:
                job.world().barrier().wait()
        finally:
            server.terminate()
        assert SECRET not in server.stdout.read() + server.stderr.read()
        assert server.wait(20) == 0


def test_no_secret_is_taken_from_a_command_line(tmp_path: Path) -> None:
    for option in ("--secret", "--secret-fil"):
        done = run_python("-m", "tokenyard", "store", option, str(file_with(tmp_path, SECRET)))
        assert done.returncode == 2
        assert f"unrecognized arguments: {option}" in done.stderr
    done = run_python("-m", "tokenyard", "store", env=dict(os.environ), timeout=60)
    assert done.returncode == 1
    assert "TOKENYARD_SECRET_FILE" in done.stderr
    readable = file_with(tmp_path, SECRET, 0o644)
    done = run_python("-m", "tokenyard", "store", "--secret-file", readable)
    assert done.returncode == 1
    assert "chmod 600" in done.stderr


def torch_rank(say: Any, rank: int, size: int, folder: str, owners: list[int]) -> str:
    import tokenyard.torch

    if rank in owners:
        os.environ["TOKENYARD_SECRET"] = SECRET
    store = dist.FileStore(f"{folder}/store", size)
    try:
        dist.init_process_group("tokenyard", store=store, rank=rank, world_size=size)
        dist.barrier()
    except tokenyard.InvalidArgument as error:
        shown = "" if SECRET not in str(error) else " and shows its secret"
        return f"{error.argument} on rank {error.rank}: {error.seen}{shown}"
    finally:
        assert SECRET.encode() not in Path(f"{folder}/store").read_bytes()
    dist.destroy_process_group()
    return "right"


@pytest.mark.skipif(dist is None, reason="needs torch")
@pytest.mark.parametrize("owners", [[], [0, 1]])
def test_ranks_of_torch_bring_their_secret_or_draw_one(owners: list[int], tmp_path: Path) -> None:
    assert results_of(torch_rank, 2, str(tmp_path), owners) == ["right", "right"]


@pytest.mark.skipif(dist is None, reason="needs torch")
@pytest.mark.parametrize(("owners", "seen"), [([0], "nothing"), ([1], "a secret")])
def test_a_rank_of_torch_that_differs_is_named(
    owners: list[int], seen: str, tmp_path: Path
) -> None:
    with ranks_of(torch_rank, 2, str(tmp_path), owners) as ranks:
        assert ranks[1].result() == f"TOKENYARD_SECRET_FILE on rank 1: {seen}"
