/// Conversion of sizes to the library's 32 bits.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>

#include "tokenyard/error.hpp"

namespace tokenyard::python {

/// Returns the size of an argument in 32 bits. Throws InvalidArgument if it does not fit.
inline uint32_t narrowed(const char* argument, uint64_t size) {
  constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
  if (size > kMost)
    throw InvalidArgument(argument, fmt::format("at most {} of them", kMost),
                          fmt::format("{}", size));
  return static_cast<uint32_t>(size);
}

}  // namespace tokenyard::python
