"""The switch of a mutant in Python: see runtime.cpp, which does the same for C++."""

import mmap
import os
import pathlib

_reached = os.environ.get("TOKENYARD_MUTANTS_REACHED")
_chosen = int(os.environ.get("TOKENYARD_MUTANT") or -1)

if _reached:
    with pathlib.Path(_reached).open("r+b") as _file:
        _states = mmap.mmap(_file.fileno(), 0)

    def on(number: int) -> bool:
        """Says that a mutant's place was reached. Returns False: nothing is changed."""
        if _states[number]:
            _states[number] = 0
        return False

else:

    def on(number: int) -> bool:
        """Returns whether the mutant is this process's."""
        return number == _chosen
