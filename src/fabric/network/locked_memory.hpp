/// The error of memory that a network card cannot lock, which all ways to cards tell alike.
#pragma once

#include <fmt/format.h>
#include <sys/resource.h>

#include <cstddef>
#include <string>

#include "tokenyard/error.hpp"

namespace tokenyard {

/// Throws InvalidArgument, which names the limit of this process. `call` found no room for so many
/// more bytes.
[[noreturn]] inline void refuse_to_lock(const std::string& call, size_t bytes) {
  rlimit limit{};
  const bool is_known = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  throw InvalidArgument(
      "ulimit -l", fmt::format("room to lock {} more bytes of memory ({} has failed)", bytes, call),
      is_known ? fmt::format("{} KiB", limit.rlim_cur >> 10) : "no limit, but too little memory");
}

}  // namespace tokenyard
