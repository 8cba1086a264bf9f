#pragma once

#include "tokenyard/error.hpp"

namespace tokenyard::membership {

/// Checks an invariant of the protocol. On in every build: its cost is nothing next to a message's.
inline void invariant(bool holds, const char* what) {
  if (!holds) throw InternalError(what);
}

}  // namespace tokenyard::membership
