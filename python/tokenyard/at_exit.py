"""What a program that ends is not told of."""

from __future__ import annotations

import atexit
import threading

import _tokenyard


@atexit.register
def _expect_no_leaks_of_daemons() -> None:
    """A daemon thread that still runs keeps all that it holds, which is no mistake in counting."""
    if threading.active_count() > 1:  # Others than daemons have been joined by now.
        _tokenyard.warn_of_leaks(False)
