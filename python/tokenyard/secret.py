"""Takes a job's secret from an argument, a file or the environment.

Never from a command line, which every user of the machine can read. No error of this file shows a
secret: errors say how long it is, or which type it has.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Sequence

from .errors import InvalidArgument, invalid

SECRET_VARIABLE = "TOKENYARD_SECRET"
SECRET_FILE_VARIABLE = "TOKENYARD_SECRET_FILE"
SHORTEST, LONGEST = 16, 4096
"""Bytes of a secret from a file or the environment. An observer of a handshake can try guesses, so
a secret must be random and long; sixteen hexadecimal digits are the least that resists for long."""
BROUGHT = "-"
"""In place of a drawn secret: every rank has its own, from its environment."""
HOW = 'make one by python -c "import secrets; print(secrets.token_hex(16))"'


def secret_of(secret: str | None, secret_file: str | os.PathLike[str] | None = None) -> str:
    """Returns a job's secret: the argument, else the file's, else the environment's.

    Raises:
        InvalidArgument: there is none, it is empty or too short, both arguments are given, or
            somebody else may read the file.
    """
    if secret is not None and secret_file is not None:
        raise invalid("secret_file", "None beside secret", "both")
    if secret_file is not None:
        return read_secret_file("secret_file", secret_file)
    if secret is not None:
        if not isinstance(secret, str) or not secret:
            seen = "an empty text" if secret == "" else f"a {type(secret).__name__}"
            raise invalid("secret", "a text that is not empty", seen)
        return secret
    found = secret_in_environment()
    if found is None:
        expected = (
            f"the job's secret, or {SECRET_FILE_VARIABLE} or {SECRET_VARIABLE} in the environment"
            f" ({HOW})"
        )
        raise invalid("secret", expected, "none of them")
    return found


def secret_or_none(
    secret: str | None, secret_file: str | os.PathLike[str] | None = None
) -> str | None:
    """Returns what `secret_of` returns; None if there is no secret."""
    if secret is None and secret_file is None:
        return secret_in_environment()
    return secret_of(secret, secret_file)


def offer_of(own: str | None) -> str:
    """Returns what rank 0 hands to the others: a secret that it draws, or BROUGHT."""
    return secrets.token_hex(16) if own is None else BROUGHT


def agreed_secret(own: str | None, offered: str, rank: int) -> str:
    """Returns the secret: this rank's own where rank 0 has brought its own, too, else the drawn."""
    _require_as_rank_0(own is not None, offered == BROUGHT, rank)
    return offered if own is None else own


def require_alike(brings: Sequence[bool]) -> None:
    """Raises unless all ranks bring a secret or none does: the same error on every rank.

    Args:
        brings: [ranks] whether each brings one.
    """
    for rank, one in enumerate(brings):
        _require_as_rank_0(one, brings[0], rank)


def _require_as_rank_0(brings: bool, first_brings: bool, rank: int) -> None:
    if first_brings and not brings:
        raise invalid(SECRET_FILE_VARIABLE, "the job's secret, as rank 0 has one", "nothing", rank)
    if brings and not first_brings:
        expected = "nothing, as on rank 0, which has drawn a secret; set it on all ranks or on none"
        raise invalid(SECRET_FILE_VARIABLE, expected, "a secret", rank)


def secret_in_environment() -> str | None:
    """Returns the secret of TOKENYARD_SECRET or TOKENYARD_SECRET_FILE; None if neither is set.

    Raises:
        InvalidArgument: it is empty or too short, somebody else may read the file, or the two
            differ.
    """
    text, path = os.environ.get(SECRET_VARIABLE), os.environ.get(SECRET_FILE_VARIABLE)
    direct = None if text is None else checked_secret(SECRET_VARIABLE, text)
    if path is None:
        return direct
    in_file = read_secret_file(SECRET_FILE_VARIABLE, path)
    if direct is not None and direct != in_file:
        expected = f"the secret that {SECRET_FILE_VARIABLE} holds; set only one of them"
        raise invalid(SECRET_VARIABLE, expected, "another one")
    return in_file


def read_secret_file(argument: str, path: str | os.PathLike[str]) -> str:
    """Returns the secret in a file that this user or root owns and nobody else may read."""
    try:
        # Without O_NONBLOCK, a pipe with no writer would keep this waiting.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _require_private(argument, path, os.fstat(descriptor))
            content = os.read(descriptor, LONGEST + 2)  # A longest one and its end of line.
        finally:
            os.close(descriptor)
    except InvalidArgument:
        raise
    except (OSError, TypeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise invalid(argument, "a file with the job's secret", f"{path!r}: {why}") from None
    return checked_secret(argument, content.decode(errors="surrogateescape"))


def _require_private(argument: str, path: str | os.PathLike[str], status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise invalid(argument, "a regular file with the job's secret", repr(path))
    if status.st_uid not in (os.geteuid(), 0):
        seen = f"{path!r} of user {status.st_uid}"
        raise invalid(argument, "a file that this user or root owns", seen)
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        seen = f"{path!r} with mode {mode:04o}"
        raise invalid(argument, "a file for its owner alone (run chmod 600)", seen)


def checked_secret(argument: str, text: str) -> str:
    """Returns `text` without surrounding white space; raises unless it is UTF-8 of fit length."""
    secret = text.strip()
    length = len(secret.encode(errors="surrogateescape"))
    if not SHORTEST <= length <= LONGEST:
        expected = f"a secret of {SHORTEST} to {LONGEST} bytes ({HOW})"
        raise invalid(argument, expected, f"{length} bytes")
    # Not found by an encoder, whose error would hold the secret.
    if any("\ud800" <= letter <= "\udfff" for letter in secret):
        raise invalid(argument, "a secret in UTF-8", "other bytes")
    return secret
