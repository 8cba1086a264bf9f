"""`python -m tokenyard`: what is installed, and what works on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

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
    found = _tokenyard.doctor()
    print(json.dumps(_fields(found), indent=2) if chosen.json else str(found).rstrip())
    return 0


def _fields(value: Any) -> Any:
    """The module's read-only values as what JSON knows."""
    if isinstance(value, list):
        return [_fields(item) for item in value]
    if not isinstance(value, _tokenyard.Diagnosis | _tokenyard.GpuFacts | _tokenyard.FabricFacts):
        return value
    names = [name for name in dir(value) if not name.startswith("_")]
    return {name: _fields(getattr(value, name)) for name in names}


if __name__ == "__main__":
    sys.exit(main())
