/// The argument for which a call is rejected.
#pragma once

#include <functional>
#include <string>

#include "tokenyard/error.hpp"

namespace tokenyard::test {

/// Returns the argument for which a call throws InvalidArgument, or "nothing".
inline std::string refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.argument;
  }
  return "nothing";
}

}  // namespace tokenyard::test
