#pragma once

#include "device/block.hpp"
#include "device/host/here.hpp"
#include "device/host/machine.hpp"

namespace tokenyard {

namespace block {

TOKENYARD_DEVICE void sync() {
  host_body::machine().barrier(0, threads(), true, host_body::here());
}
TOKENYARD_DEVICE bool any(bool predicate) {
  return host_body::machine().barrier_any(predicate, host_body::here());
}
template <class Shared>
TOKENYARD_DEVICE Shared& shared() {
  return *static_cast<Shared*>(host_body::machine().shared_memory());
}
template <class Shared>
TOKENYARD_DEVICE std::byte* shared_tail() {
  return static_cast<std::byte*>(host_body::machine().shared_tail());
}

}  // namespace block

TOKENYARD_DEVICE void NamedBarrier::sync(uint32_t threads) const {
  host_body::machine().barrier(id_, threads, true, host_body::here());
}
TOKENYARD_DEVICE void NamedBarrier::arrive(uint32_t threads) const {
  host_body::machine().barrier(id_, threads, false, host_body::here());
}

}  // namespace tokenyard
