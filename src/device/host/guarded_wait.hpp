#pragma once

#include "device/guarded_wait.hpp"

namespace tokenyard {

template <class Condition, class GoesOn>
TOKENYARD_DEVICE bool wait_until(Awaited& what, Condition condition, GoesOn goes_on) {
  while (!condition()) {
    if (!goes_on()) return false;
    host_body::machine().spin(what.phase, what.rank, what.expected, what.seen, host_body::here());
  }
  return true;
}

}  // namespace tokenyard
