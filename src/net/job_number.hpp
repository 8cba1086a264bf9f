/// The hash of a job's name that travels in headers.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/fnv1a.hpp"

namespace tokenyard::net {

/// Tells jobs apart. It is no secret and proves nothing.
inline uint64_t job_number(std::string_view name) {
  return fnv1a(std::as_bytes(std::span(name)));
}

}  // namespace tokenyard::net
