/// Turns UCX's error codes into exceptions.
#pragma once

#include <ucs/type/status.h>

#include <string>

#include "tokenyard/error.hpp"

namespace tokenyard::ucx {

inline void check(ucs_status_t status, const std::string& call) {
  if (status != UCS_OK) throw OsError(call, static_cast<int>(status), ucs_status_string(status));
}

}  // namespace tokenyard::ucx
