"""`python -m tokenyard`: what is installed, and what works on this machine."""

from __future__ import annotations

import argparse
import sys

import _tokenyard


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tokenyard",
        description="Token dispatch and combine for mixture-of-experts models.",
    )
    parser.add_argument("--version", action="version", version=f"tokenyard {_tokenyard.version}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor", help="GPUs, links, driver; which fabrics work here, and why the others do not"
    )
    doctor.add_argument("--json", action="store_true", help="for programs")
    chosen = parser.parse_args(arguments)
    if chosen.command is None:
        parser.print_help()
        return 0
    print(_tokenyard.doctor(json=chosen.json), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
