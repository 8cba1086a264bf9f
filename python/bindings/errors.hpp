/// Translation of the library's exceptions to Python's.
#pragma once

#include <exception>

namespace tokenyard::python {

/// Sets Python's error to the exception; needs the interpreter lock. For code that nanobind, which
/// does this itself, does not call.
void set_python_error(const std::exception_ptr& thrown);

}  // namespace tokenyard::python
