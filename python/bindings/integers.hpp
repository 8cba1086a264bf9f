/// Conversion of Python's integers.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

namespace tokenyard::python {

/// Returns the value of any Python integer but a bool, if it is between 0 and `largest`.
inline std::optional<uint64_t> integer_of(nanobind::handle value, uint64_t largest) {
  if (nanobind::isinstance<nanobind::bool_>(value)) return std::nullopt;
  const nanobind::object index = nanobind::steal(PyNumber_Index(value.ptr()));
  uint64_t number = 0;
  if (!index.is_valid()) {
    PyErr_Clear();
    return std::nullopt;
  }
  if (!nanobind::try_cast(index, number, false) || number > largest) return std::nullopt;
  return number;
}

}  // namespace tokenyard::python
