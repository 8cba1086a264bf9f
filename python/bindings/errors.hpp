/// The library's exceptions as Python's.
#pragma once

#include <exception>

namespace tokenyard::python {

/// Sets Python's error to what was thrown; needs the interpreter lock. For code that is called by
/// something other than nanobind, which does this by itself.
void set_python_error(const std::exception_ptr& thrown);

}  // namespace tokenyard::python
