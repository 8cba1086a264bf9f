/// The integer type of expert ids.
#pragma once

#include <nanobind/ndarray.h>

#include "tokenyard/error.hpp"

namespace tokenyard::python {

/// Returns whether ids are int64 rather than int32; the package has rejected all else.
inline bool is_int64(nanobind::dlpack::dtype dtype) {
  if (dtype == nanobind::dtype<int64_t>()) return true;
  if (dtype == nanobind::dtype<int32_t>()) return false;
  throw InvalidArgument("topk_idx", "int32 or int64", "another dtype");
}

}  // namespace tokenyard::python
