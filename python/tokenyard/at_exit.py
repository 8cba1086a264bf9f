"""Silences leak warnings at exit that daemon threads would cause."""

from __future__ import annotations

import atexit
import threading

import _tokenyard


@atexit.register
def _ignore_leaks_of_daemons() -> None:
    """Turns leak warnings off if daemon threads run: their references are not leaks."""
    if threading.active_count() > 1:  # Only daemons are left; all other threads were joined.
        _tokenyard.warn_of_leaks(False)
