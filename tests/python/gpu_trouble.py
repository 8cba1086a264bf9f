"""Ranks on GPUs end, fall silent, are killed and stopped; the others go on in time.

Run it on a machine with two GPUs, with the package and torch installed:

    python tests/python/gpu_trouble.py

It prints times, and its exit code is 0 if all went well and within the limits below. It ends within
four minutes. On a machine with one GPU, `--part threads` runs the first part alone. With
`--device host` it runs without GPUs, to try the script itself.

On one GPU, whose ranks are threads of a process, a rank leaves or is silent while the other one's
kernel waits for it. On two GPUs, ranks are processes: one is killed or stopped in the midst of
dispatches, the other one goes on, and a new process takes the lost one's place.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

RECOVERY_MAX_S = 1.0
"""From the detection of a loss to the survivor's first good calls."""
JOINING_MAX_S = 2.0
"""From the call by which a new process joins to its first good calls."""
SILENCE_S = 1.0
"""Seconds without a heartbeat after which a process counts as gone."""
WAIT_S = 2.0
"""Deadline of a call whose peer is silent."""
LATE_S = 1.0
"""By how much a deadline or a silence may be exceeded."""
LONGEST_S = 60.0
"""Seconds after which the script gives up waiting for a process."""
ALL_S = 235.0
"""Seconds after which the script ends, with the processes that it has started."""
SECRET = "of-the-trouble-on-two-gpus"
EXPERTS, HIDDEN, TOPK, TOKENS = 8, 4096, 2, 128
SIZES: dict[str, Any] = dict(experts=EXPERTS, hidden=HIDDEN, topk=TOPK, tokens_max=TOKENS)


class Calls:
    """Dispatches and combines whose results are known, among the members of a world."""

    def __init__(self, world: Any, device: str) -> None:
        import torch

        import tokenyard

        self.torch = torch
        self.where = f"cuda:{world.device_index}" if device == "cuda" else "cpu"
        self.world = world
        self.exchange = tokenyard.ExpertParallel(world, **SIZES)
        self._low_latency: Any = None
        self.x = torch.full(
            (TOKENS, HIDDEN), world.rank + 1, dtype=torch.bfloat16, device=self.where
        )
        self.weights = torch.full((TOKENS, TOPK), 0.5, device=self.where)

    @property
    def low_latency(self) -> Any:
        """A process that joins makes each exchange where the members use theirs."""
        import tokenyard

        if self._low_latency is None:
            self._low_latency = tokenyard.LowLatency(self.world, **SIZES)
        return self._low_latency

    def ids(self, members: list[int]) -> Any:
        """Returns two experts per token, of two members in turn, or both of one."""
        held = EXPERTS // self.world.size
        choices = [
            [members[(token + at) % len(members)] * held + at for at in range(TOPK)]
            for token in range(TOKENS)
        ]
        return self.torch.tensor(choices, device=self.where)

    def dispatch(self, members: list[int]) -> Any:
        received = self.exchange.dispatch(self.x, self.ids(members))
        self.exchange.wait()
        return received

    def combine(self, received: Any, members: list[int]) -> None:
        y = self.exchange.combine(received.x, received)
        self.exchange.wait()
        self.require(y, len(set(members)) > 1, "combine")

    def serve(self, members: list[int]) -> None:
        got = self.low_latency.dispatch(self.x, self.ids(members), rows="bf16")
        home = self.low_latency.combine(got.x, got, self.weights)
        self.low_latency.wait()
        y = home.x if hasattr(home, "x") else home
        if not bool((y == self.world.rank + 1).all()):
            raise AssertionError("low latency: another sum than expected")

    def require(self, y: Any, on_two_ranks: bool, what: str) -> None:
        """Requires a token's row once for each rank that it was sent to."""
        rows = TOPK if on_two_ranks else 1
        if not bool((y == rows * (self.world.rank + 1)).all()):
            raise AssertionError(f"{what}: another sum than expected")


# ---- one GPU: ranks are threads


def error_of(call: Callable[[], Any]) -> tuple[BaseException | None, float]:
    """Returns the error of a call that should fail, and the seconds that it took."""
    begun = time.monotonic()
    try:
        call()
    except Exception as error:
        return error, time.monotonic() - begun
    return None, time.monotonic() - begun


def threads_on_one_gpu(device: str, arena_bytes: int) -> list[str]:
    import tokenyard

    faults: list[str] = []

    def expect(
        name: str, error: BaseException | None, kinds: Any, took: float, most: float
    ) -> None:
        shown = "nothing" if error is None else f"{type(error).__name__}: {error}"
        print(f"  {name}: after {took:.3f} s, {shown}", flush=True)
        if not isinstance(error, kinds) or error.rank != 1 or took > most:
            faults.append(f"{name}: {shown} after {took:.3f} s, at most {most:.1f} expected")

    def leaves(world: Any) -> None:
        calls = Calls(world, device)
        calls.combine(calls.dispatch([0, 1]), [0, 1])
        if world.rank == 1:
            return
        error, took = error_of(lambda: [calls.dispatch([0, 1]) for _ in range(3)])
        # Ranks that share a GPU launch kernels together, and wait there for one that has ended.
        kinds = (tokenyard.PeerLost, tokenyard.PeerTimeout)
        most = LATE_S if device == "host" else WAIT_S + LATE_S
        expect("a rank that ends", error, kinds, took, most)

    def is_silent(world: Any) -> None:
        calls = Calls(world, device)
        calls.combine(calls.dispatch([0, 1]), [0, 1])
        calls.serve([0, 1])
        if world.rank == 1:
            done.wait(LONGEST_S)
            return
        error, took = error_of(lambda: calls.dispatch([0, 1]))
        expect("a rank that is silent", error, tokenyard.PeerTimeout, took, WAIT_S + LATE_S)
        if device != "host":  # A launch waits for all ranks of the GPU, so none can be masked.
            error, took = error_of(lambda: calls.serve([0, 1]))
            expect("low latency, silent", error, tokenyard.PeerTimeout, took, WAIT_S + LATE_S)
            done.set()
            return
        begun = time.monotonic()
        got = calls.low_latency.dispatch(calls.x, calls.ids([0, 1]), rows="bf16", timeout=WAIT_S)
        calls.low_latency.combine(got.x, got, calls.weights, timeout=WAIT_S)
        calls.low_latency.wait()
        took = time.monotonic() - begun
        masked = [rank.rank for rank in calls.low_latency.failed_ranks()]
        print(f"  low latency, silent: after {took:.3f} s, masks {masked}", flush=True)
        if masked != [1] or took > 2 * WAIT_S + LATE_S:
            faults.append(f"low latency masks {masked} after {took:.3f} s")
        done.set()

    for case in (leaves, is_silent):
        done = threading.Event()
        try:
            tokenyard.launch(
                case, ranks=2, device=device, timeout=WAIT_S, arena_bytes=min(arena_bytes, 1 << 28)
            )
        except Exception as error:
            faults.append(f"{case.__name__}: {type(error).__name__}: {error}")
        finally:
            done.set()
            for thread in threading.enumerate():  # A rank whose launch has failed may still wait.
                if thread is not threading.current_thread():
                    thread.join(LATE_S)
    return faults


# ---- two GPUs: ranks are processes


def say(word: str, **facts: Any) -> None:
    print(json.dumps({"word": word, "at": time.monotonic(), **facts}), flush=True)


def rank_main(options: argparse.Namespace) -> None:
    """A rank of a job. Prints a line of JSON whenever the script waits for one."""
    import torch

    import tokenyard
    from tokenyard.world import end_with_parent

    end_with_parent(options.parent)
    if options.device == "cuda":
        torch.cuda.set_device(options.rank)
        torch.ones(1, device="cuda").item()
    say("ready")
    begun = time.monotonic()
    job = tokenyard.connect(
        options.store,
        secret=SECRET,
        rank=options.rank,
        size=2,
        timeout=30,
        silence=SILENCE_S,
        join=options.join,
    )
    world = job.world(device=options.device, arena_bytes=options.arena_bytes, timeout=30)
    calls = Calls(world, options.device)
    everybody = [0, 1]
    if options.join:
        say("joined", seconds=first_calls(calls, job, everybody, begun))
    else:
        first_calls(calls, job, everybody, begun)
        say("at work")
        until_alone(calls, job)
        if options.rank == 0:
            # The new process finds the same exchanges.
            job.replace(1, timeout=LONGEST_S)
            say("replaced", seconds=first_calls(calls, job, everybody, time.monotonic()))
    world.barrier("done")
    job.close()


def first_calls(calls: Calls, job: Any, members: list[int], since: float) -> dict[str, float]:
    """Returns the seconds until each first call was right."""
    seconds: dict[str, float] = {}

    def note(name: str, call: Callable[[], Any]) -> Any:
        result = call()
        seconds[name] = time.monotonic() - since
        return result

    received = note("dispatch", lambda: calls.dispatch(members))
    note("combine", lambda: calls.combine(received, members))
    note("low latency", lambda: calls.serve(members))
    ones = calls.torch.ones(1000).numpy()
    note("all_reduce", lambda: job.collectives().world().all_reduce(ones).wait())
    if not bool((ones == len(members)).all()):
        raise AssertionError("all_reduce: another sum than expected")
    return seconds


def until_alone(calls: Calls, job: Any) -> None:
    """Exchanges until the other rank is lost, and goes on without it."""
    import tokenyard

    try:
        while True:
            calls.dispatch([0, 1])
    except (tokenyard.PeerLost, tokenyard.PeerTimeout, tokenyard.OutOfTouch) as error:
        say("lost", error=f"{type(error).__name__}: {error}")
    detected = time.monotonic()
    try:
        job.recover()
        agreed = time.monotonic() - detected
    except tokenyard.Fenced as error:
        say("out", error=str(error))
        job.close()
        os._exit(0)
    while True:
        try:
            seconds = first_calls(calls, job, [calls.world.rank], detected)
            break
        except tokenyard.OperationAborted:  # A call that the lost rank has not finished.
            continue
    say("went on", seconds={"agreed": agreed, **seconds})


class Process:
    """A rank that is a process."""

    def __init__(self, options: argparse.Namespace, store: str, rank: int, join: bool) -> None:
        command = [sys.executable, __file__, "--rank", str(rank), "--store", store]
        command += ["--parent", str(os.getpid()), "--device", options.device]
        command += ["--arena-bytes", str(options.arena_bytes)] + (["--join"] if join else [])
        self.rank = rank
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)
        self._bytes = b""

    def hears(self, word: str) -> dict[str, Any]:
        """Returns the facts that the rank says with the word."""
        deadline = time.monotonic() + LONGEST_S
        while time.monotonic() < deadline:
            line, found, rest = self._bytes.partition(b"\n")
            if found:
                self._bytes = rest
                with contextlib.suppress(json.JSONDecodeError):
                    said: dict[str, Any] = json.loads(line)
                    if said["word"] == word:
                        return said
                continue
            if not self._selector.select(timeout=1.0):
                continue
            more = self._output.read()
            if more == b"":
                raise AssertionError(f"rank {self.rank} ended before it said {word!r}")
            self._bytes += more or b""
        raise AssertionError(f"rank {self.rank} did not say {word!r} in {LONGEST_S} s")

    def send(self, blow: signal.Signals) -> float:
        """Returns the time of the signal."""
        self._process.send_signal(blow)
        return time.monotonic()

    def ends(self) -> int:
        return self._process.wait(LONGEST_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(LONGEST_S)
        self._selector.close()
        self._output.close()


@contextlib.contextmanager
def ended(processes: list[Process]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def shown(seconds: dict[str, float]) -> str:
    return ", ".join(f"{call} {1e3 * took:.0f} ms" for call, took in seconds.items())


def processes_on_two_gpus(options: argparse.Namespace, blow: signal.Signals) -> list[str]:
    faults: list[str] = []
    processes: list[Process] = []

    def limit(what: str, seconds: dict[str, float], most: float) -> None:
        print(f"  {what}: {shown(seconds)}", flush=True)
        faults.extend(
            f"{blow.name}: {what}: {call} after {took:.3f} s, at most {most} allowed"
            for call, took in seconds.items()
            if took > most
        )

    with tempfile.TemporaryDirectory() as folder, ended(processes):
        store = f"file:{folder}/store"
        for rank in range(2):
            processes.append(Process(options, store, rank, join=False))
        for process in processes:
            process.hears("at work")
        time.sleep(0.2)  # In the midst of dispatches.
        at = processes[1].send(blow)
        lost = processes[0].hears("lost")
        detection = lost["at"] - at
        print(f"  detected after {detection:.3f} s: {lost['error']}", flush=True)
        allowed = SILENCE_S + LATE_S if blow == signal.SIGSTOP else LATE_S
        if detection > allowed:
            faults.append(f"{blow.name}: detected after {detection:.3f} s, {allowed} allowed")
        limit("survivor, since detection", processes[0].hears("went on")["seconds"], RECOVERY_MAX_S)
        if blow == signal.SIGSTOP:
            processes[1].send(signal.SIGCONT)
            said = processes[1].hears("out")
            print(f"  the one that was stopped: {said['error']}", flush=True)
        processes[1].ends()
        processes.append(Process(options, store, 1, join=True))
        processes[2].hears("ready")
        limit("replacement, since it joins", processes[2].hears("joined")["seconds"], JOINING_MAX_S)
        print(
            f"  survivor, with it: {shown(processes[0].hears('replaced')['seconds'])}", flush=True
        )
        faults.extend(
            f"{blow.name}: rank {process.rank} ended with {process.ends()}"
            for process in (processes[0], processes[2])
            if process.ends() != 0
        )
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=["cuda", "host"], default="cuda")
    parser.add_argument("--arena-bytes", type=int, default=1 << 30)
    parser.add_argument("--part", choices=["all", "threads", "processes"], default="all")
    parser.add_argument("--rank", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--join", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        rank_main(options)
        return 0
    faulthandler.dump_traceback_later(ALL_S, exit=True)
    faults: list[str] = []
    if options.part == "threads":
        faults += threads_on_one_gpu(options.device, options.arena_bytes)
    elif options.part == "all":
        # In a process of its own, which sees one GPU.
        print("one GPU, ranks are threads:", flush=True)
        command = [sys.executable, __file__, "--part", "threads", "--device", options.device]
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        sees_one = {**os.environ, "CUDA_VISIBLE_DEVICES": first}
        code = subprocess.run(command, env=sees_one, timeout=LONGEST_S, check=False).returncode
        if code != 0:
            faults.append(f"ranks that are threads: exit code {code}")
    if options.part in ("all", "processes"):
        for blow in (signal.SIGKILL, signal.SIGSTOP):
            print(f"two GPUs, ranks are processes, {blow.name}:", flush=True)
            try:
                faults += processes_on_two_gpus(options, blow)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                faults.append(f"{blow.name}: {error}")
    for fault in faults:
        print(f"FAULT {fault}", flush=True)
    print("all went well" if not faults else f"{len(faults)} faults", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
