#pragma once

#include "device/host/here.hpp"
#include "device/host/machine.hpp"
#include "device/mutated.hpp"

namespace tokenyard {

TOKENYARD_DEVICE bool mutated() {
  return host_body::machine().mutated(host_body::here());
}

}  // namespace tokenyard
