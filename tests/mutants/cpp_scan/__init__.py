"""Finds the mutants of C++ files, with libclang.

Only bodies of functions have mutants. Constants of the compiler (constexpr variables, template
arguments, case labels, static_assert, `if constexpr`) and text of macros have none.

`bodies` walks the bodies. Each kind of operator has a file, whose functions look at one cursor and
add its changes to the `SourceFile`:

    comparisons   compare, term        loops        bound
    conditions    condition, check     epochs       epoch
    statements    statement, check, release         numbers      constant
    early_return  return               arguments    swap
"""

from cpp_scan.units import Scanner, scan_text, units

__all__ = ["Scanner", "scan_text", "units"]
