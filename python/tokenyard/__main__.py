"""`python -m tokenyard`: prints the version, diagnoses this machine, serves a job's store."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys

import _tokenyard

from .collectives import StoreServer
from .errors import Error
from .peer_times import places_of, rows_of, table_of, text_of
from .secret import SECRET_FILE_VARIABLE, SECRET_VARIABLE, checked_secret, secret_of
from .world import World


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tokenyard",
        description="Token dispatch and combine for mixture-of-experts models.",
    )
    parser.add_argument("--version", action="version", version=f"tokenyard {_tokenyard.version}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor", help="reports GPUs, links, fabrics and rates, and what to do where one fails"
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument(
        "--no-self-test",
        action="store_true",
        help="leave out the dispatch and combine among ranks of this machine, a second per device",
    )
    doctor.add_argument(
        "--peers",
        action="store_true",
        help="instead, time put and signal between the ranks of a job: start this command on each"
        " rank by torchrun, srun or mpirun; rank 0 prints the times",
    )
    doctor.add_argument(
        "--device", default="host", choices=["host", "cuda"], help="of the ranks (%(default)s)"
    )
    doctor.add_argument(
        "--timeout", type=float, default=30.0, help="seconds for the ranks to meet (%(default)s)"
    )
    store = commands.add_parser(
        "store",
        help="serves the store of a collectives job until SIGINT or SIGTERM",
        allow_abbrev=False,  # So that --secret is refused, and no secret is taken for a path.
    )
    store.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    store.add_argument("--port", type=int, default=0, help="0: any free port (%(default)s)")
    store.add_argument(
        "--secret-file",
        help="file with the job's secret, for its owner alone; - for standard input"
        f" (default: {SECRET_FILE_VARIABLE} or {SECRET_VARIABLE} of the environment)",
    )
    chosen = parser.parse_args(arguments)
    if chosen.command is None:
        parser.print_help()
        return 0
    if chosen.command == "store":
        return _serve(chosen.host, chosen.port, chosen.secret_file)
    if chosen.peers:
        return _peers(chosen.device, chosen.timeout, as_json=chosen.json)
    found = _tokenyard.doctor(self_test=not chosen.no_self_test)
    return _say((found.json() if chosen.json else str(found)).rstrip())


def _say(text: str) -> int:
    """Prints `text` and returns the exit status; a broken pipe is not an error."""
    if sys.stdout is None:
        print("python -m tokenyard: standard output is closed", file=sys.stderr)
        return 1
    try:
        print(text)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # For the interpreter's last flush.
        if not isinstance(error, BrokenPipeError):
            print(f"python -m tokenyard: standard output: {error.strerror}", file=sys.stderr)
            return 1
    return 0


def _peers(device: str, timeout: float, *, as_json: bool) -> int:
    """Times the network of a launcher's job; rank 0 prints, and each rank says why it failed."""
    try:
        with World.from_env(device=device, timeout=timeout, arena_bytes=16 << 20) as world:
            rows = rows_of(world)
            if world.rank != 0:
                return 1 if any(row["error"] for row in rows if row["rank"] == world.rank) else 0
            places = places_of(world)
            if as_json:
                said = _say(json.dumps(places | {"peers": rows}, indent=2))
            else:
                said = _say(f"{text_of(places)}\n\n{table_of(rows)}")
            return 1 if any(row["error"] for row in rows) else said
    except (OSError, Error) as error:
        print(f"python -m tokenyard doctor: {error}", file=sys.stderr)
        return 1


def _serve(host: str, port: int, secret_file: str | None) -> int:
    """Prints the store's address, then serves until SIGINT or SIGTERM."""
    ends = {signal.SIGINT, signal.SIGTERM}
    try:
        if secret_file == "-":
            secret = checked_secret("standard input", sys.stdin.readline())
        else:
            secret = secret_of(None, secret_file)
        # After the read of standard input, which Ctrl-C must interrupt; before the server's
        # threads, which inherit the mask.
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)
        server = StoreServer(secret=secret, host=host, port=port)
    except (OSError, Error) as error:
        print(f"python -m tokenyard store: {error}", file=sys.stderr)
        return 1
    with server:
        print(server.address, flush=True)
        signal.sigwait(ends)
    return 0


if __name__ == "__main__":
    sys.exit(main())
