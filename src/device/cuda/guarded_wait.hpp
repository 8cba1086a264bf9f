#pragma once

#include "device/guarded_wait.hpp"

namespace tokenyard {

template <class Condition, class GoesOn>
TOKENYARD_DEVICE bool wait_until(Awaited&, Condition condition, GoesOn goes_on) {
  while (!condition())
    if (!goes_on()) return false;
  return true;
}

}  // namespace tokenyard
