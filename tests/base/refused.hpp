/// What a call is refused for.
#pragma once

#include <functional>
#include <string>

#include "tokenyard/error.hpp"

namespace tokenyard::test {

/// The argument that a call is refused for.
inline std::string refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.argument;
  }
  return "nothing";
}

}  // namespace tokenyard::test
