/// The number by which a job's name travels in headers.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/fnv1a.hpp"

namespace tokenyard::net {

/// Tells jobs apart; keeps no secret.
inline uint64_t job_number(std::string_view name) {
  return fnv1a(std::as_bytes(std::span(name)));
}

}  // namespace tokenyard::net
