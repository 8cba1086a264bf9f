"""The start and the end of every example program.

The examples import this before heavy modules, so that `--help` and Ctrl-C respond at once.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

INTERRUPTED = 128 + 2
"""Exit status after SIGINT, as shells report it."""
NO_READER = 128 + 13
"""Exit status after the reader of standard output has closed it."""


class Refused(Exception):
    """An argument is wrong; the message is one sentence."""


class Failed(Exception):
    """A run has failed; the message is one sentence."""


EXTRA = ("rich", "matplotlib", "safetensors")
"""The packages of pyproject.toml's extra `demo`."""


def run(main: Callable[[], int]) -> NoReturn:
    """Calls `main` and ends the process with the status that it returns.

    Failures that a user can act on print one sentence on standard error: a wrong argument (exit
    status 2), a failed run or an error of the library or the system (1), a missing package (1),
    Ctrl-C (130).
    """
    # Every rank is a thread or a process: additional threads of BLAS slow ranks down by a factor of
    # a hundred if ranks outnumber cores. Libraries read these variables when they are imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sys.stdout is None:
        _say("Standard output is closed: this run reports only through its files and exit status.")
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  Open to the end.
    try:
        status = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = _fail("Interrupted.", INTERRUPTED)
    except Refused as refused:
        status = _fail(str(refused), 2)
    except Failed as failed:
        status = _fail(str(failed), 1)
    except ModuleNotFoundError as missing:  # The only ImportError that an installation fixes.
        name = missing.name or "another package"
        status = _fail(f"This example needs {name}: pip install {_packages_for(name)}", 1)
    except BrokenPipeError:
        status = NO_READER
    except MemoryError:
        status = _fail("There is too little memory for sizes as large as these.", 1)
    except OSError as error:
        # A file has a name; standard output has none.
        where = error.filename or "standard output"
        status = _fail(f"Cannot go on with {where}: {error.strerror}", 1)
    except Exception as error:
        if _comes_of_ctrl_c(error):
            status = _fail("Interrupted.", INTERRUPTED)
        elif _is_of_the_library(error):
            status = _fail(f"{type(error).__name__}: {error}", 1)
        else:
            raise
    _flush()
    sys.exit(status)


@contextmanager
def importing() -> Iterator[None]:
    """Defers Ctrl-C to the end of a block that imports compiled modules.

    A module that is interrupted while it is imported may raise another error, end the process, or
    ignore Ctrl-C.
    """
    came: list[int] = []
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if came:
            raise KeyboardInterrupt


def write_into(folder: Path, names: Sequence[str]) -> None:
    """Makes the folder of a run's results; raises Refused if a file cannot be written.

    Call it before the run, so that no result is lost at its end.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in (folder / name for name in names):
            existed = path.exists()
            with path.open("ab"):  # Keeps an earlier run's result.
                pass
            if not existed:
                path.unlink()
    except OSError as error:
        where = error.filename or folder
        raise Refused(f"--out: cannot write {where}: {error.strerror}") from None


def require_memory(needed: int, sizes: str) -> None:
    """Raises Refused if a run of these sizes needs more memory than is free."""
    free = _free_memory()
    if free is not None and needed > free:
        raise Refused(
            f"{sizes} would take about {_readable(needed)} of memory; {_readable(free)} are free"
        )


def _free_memory() -> int | None:
    """Returns the bytes available without swapping; None if the system does not report them."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _readable(size: int) -> str:
    value = float(size)
    for unit in ("bytes", "KB", "MB", "GB", "TB", "PB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} EB"


def _packages_for(module: str) -> str:
    """Returns what pip has to install besides what is there.

    Where Tokenyard is installed, its own folder is not named: pip would compile it again.
    """
    others = [] if module in (*EXTRA, "tokenyard", "_tokenyard") else [module]
    if importlib.util.find_spec("tokenyard") is None:
        return " ".join([*others, "'.[demo]'"])
    return " ".join(others + [name for name in EXTRA if importlib.util.find_spec(name) is None])


def _comes_of_ctrl_c(error: BaseException | None) -> bool:
    """Returns whether Ctrl-C caused an error: an interrupted import may raise ImportError."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _is_of_the_library(error: Exception) -> bool:
    library = sys.modules.get("tokenyard")
    return library is not None and isinstance(error, library.Error)


def _say(sentence: str) -> None:
    if sys.stderr is not None:
        print(sentence, file=sys.stderr)


def _fail(sentence: str, status: int) -> int:
    _say(sentence)
    return status


def _flush() -> None:
    """Flushes standard output; drops what cannot be written, so that the last flush succeeds."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
