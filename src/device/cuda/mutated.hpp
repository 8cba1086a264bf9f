#pragma once

#include "device/mutated.hpp"

namespace tokenyard {

TOKENYARD_DEVICE bool mutated() {
  return false;
}

}  // namespace tokenyard
