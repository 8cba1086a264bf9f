#pragma once

#include "tokenyard/error.hpp"

namespace tokenyard::membership {

/// What the protocol rests on; checked in every build, since it costs nothing beside a message.
inline void invariant(bool holds, const char* what) {
  if (!holds) throw InternalError(what);
}

}  // namespace tokenyard::membership
