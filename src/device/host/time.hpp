#pragma once

#include "device/host/machine.hpp"
#include "device/time.hpp"

namespace tokenyard {

TOKENYARD_DEVICE uint64_t now_ns() {
  return host_body::machine().now_ns();
}
TOKENYARD_DEVICE uint64_t cycles() {
  return host_body::machine().cycles();
}
TOKENYARD_DEVICE void nap(uint32_t ns) {
  host_body::machine().nap(ns);
}

}  // namespace tokenyard
