/// Errors of system calls.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

#include "tokenyard/error.hpp"

namespace tokenyard {

/// Throws OsError for a call of the system that has failed with `code`.
[[noreturn]] inline void os_failed(const std::string& call, int code = errno) {
  throw OsError(call, code, std::strerror(code));
}

}  // namespace tokenyard
